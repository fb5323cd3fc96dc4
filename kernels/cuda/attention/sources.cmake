# Sources of the attention kernels, relative to the repository; kernels/cuda includes this. Host code that CUDA does not
# touch is in pagoda::attention_plan, which every build has.
set(PAGODA_CUDA_ATTENTION_SOURCES
    kernels/cuda/attention/check.cc
    kernels/cuda/attention/decode.cc)
foreach(type bf16 fp16)
  foreach(head_dim 64 80 96 128 256)
    list(APPEND PAGODA_CUDA_ATTENTION_SOURCES
         kernels/cuda/attention/instantiations/decode_${type}_${head_dim}.cu)
  endforeach()
endforeach()
