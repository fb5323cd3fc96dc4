#!/usr/bin/env bash
# `cuda_module.sh PAGODA FOLDER`: FOLDER/pagoda_cuda.so is a module of this version of pagoda and exports its two symbols
# alone; on a machine without a driver a daemon with it ends with exit code 8 and says what is missing.
set -euo pipefail
pagoda=$1
folder=$2
cd "$(dirname "$0")/.."

exported=$(nm -D --defined-only "$folder/pagoda_cuda.so" | awk '$2 == "T" {print $3}' | sort | tr '\n' ' ')
if [ "$exported" != "pagoda_cuda_module_abi pagoda_cuda_module_create " ]; then
  echo "error: the module exports: $exported" >&2
  exit 1
fi
if [ -e /dev/nvidia0 ] || [ -e /dev/nvidiactl ]; then
  echo "this machine has a GPU: tests/run_gpu.sh tests the module"
  exit 0
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
code=0
timeout 60 "$pagoda" serve deploy/models/fable-7m --device=cuda --backend-dir="$folder" --grpc-address="unix:$scratch/grpc.sock" \
  --metrics-address=127.0.0.1:0 --http-address=none >"$scratch/log" 2>&1 || code=$?
if [ "$code" -ne 8 ] || ! grep -q "no NVIDIA driver was found" "$scratch/log"; then
  echo "error: the daemon ended with $code; expected 8, and that there is no driver:" >&2
  cat "$scratch/log" >&2
  exit 1
fi
echo "without a driver: exit code 8: $(grep "no NVIDIA driver" "$scratch/log" | cut -c1-160)"
