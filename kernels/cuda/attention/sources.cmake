# Sources of the attention kernels, relative to the repository; kernels/cuda includes this. The plan, which no CUDA
# header touches, is pagoda::attention_plan, a library that every build has.
set(PAGODA_CUDA_ATTENTION_SOURCES
    kernels/cuda/attention/check.cc
    kernels/cuda/attention/decode.cc
    # A file of its own for each type and size would spend most of its time in headers.
    kernels/cuda/attention/instantiations/prefill_wgmma_bf16.cu
    kernels/cuda/attention/instantiations/prefill_wgmma_fp16.cu
    kernels/cuda/attention/prefill.cc
    kernels/cuda/attention/tensor_map.cc)
