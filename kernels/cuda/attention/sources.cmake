# Sources of the attention kernels, relative to the repository; kernels/cuda includes this. The plan, which no CUDA
# header touches, is pagoda::attention_plan, a library that every build has.
set(PAGODA_CUDA_ATTENTION_SOURCES
    kernels/cuda/attention/check.cc
    kernels/cuda/attention/decode.cc
    kernels/cuda/attention/paged_attention_classic.cu
    kernels/cuda/attention/prefill.cc
    kernels/cuda/attention/rope_kv_write.cu
    kernels/cuda/attention/tensor_map.cc)
foreach(type bf16 fp16)
  foreach(head_dim 64 80 96 128 256)
    list(APPEND PAGODA_CUDA_ATTENTION_SOURCES
         kernels/cuda/attention/instantiations/decode_${type}_${head_dim}.cu
         kernels/cuda/attention/instantiations/prefill_mma_${type}_${head_dim}.cu)
  endforeach()
  foreach(head_dim 64 128 256)
    list(APPEND PAGODA_CUDA_ATTENTION_SOURCES
         kernels/cuda/attention/instantiations/prefill_wgmma_${type}_${head_dim}.cu)
  endforeach()
endforeach()
