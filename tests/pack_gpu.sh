#!/bin/bash
# Puts executables of a build and the shared libraries they need into one folder, for a machine that has a GPU but not this
# system's packages: `pack_gpu.sh FOLDER EXECUTABLE...`. The C library, the compiler's and CUDA's stay behind; run there with
# FOLDER in LD_LIBRARY_PATH, and the folder of libcublasLt.so.13.
set -euo pipefail
folder=$1
shift
mkdir -p "$folder"
for executable in "$@"; do
  cp "$executable" "$folder/"
  strip --strip-unneeded "$folder/$(basename "$executable")"
  ldd "$executable" | awk '$3 ~ /^\// {print $3}' |
    grep -v -E '/(libc|libm|libdl|libpthread|librt|libgcc_s|libstdc\+\+|libcublasLt|libnccl)\.so' |
    xargs -r -I{} cp -L {} "$folder/" || true  # grep finds nothing where nothing is needed
done
# ICU's data are 30 MB that no text of the GPU's tests asks for: an empty table in their place. Without it ICU finds none, and
# says so.
for library in "$folder"/libicudata.so.*; do
  [ -e "$library" ] || continue
  printf 'const char icudt%s_dat[64] __attribute__((aligned(16))) = {0};' "${library##*.}" |
    gcc -shared -fPIC "-Wl,-soname,$(basename "$library")" -x c - -o "$library"
done
