#!/usr/bin/env bash
# Generated cases against jinja2 (random chats and template programs) and against transformers (random small models of
# every architecture; torch and transformers are several gigabytes), in a virtual environment under build/.
#   tests/peers/generated.sh [PAGODA_BINARY]
set -euo pipefail
cd "$(dirname "$0")/../.."
pagoda=${1:-build/release/daemon/pagoda}
venv=build/venv
[ -x "$venv/bin/pip" ] || python3 -m venv "$venv"
"$venv/bin/pip" install -q grpcio grpcio-tools grpcio-reflection grpcio-health-checking numpy safetensors jinja2 torch \
  "transformers>=5"
mkdir -p build/peers
"$venv/bin/python" -m grpc_tools.protoc -Iproto --python_out=build/peers --grpc_python_out=build/peers \
  proto/pagoda/v1/inference.proto proto/google/rpc/status.proto proto/google/rpc/error_details.proto
export PYTHONPATH=build/peers:tests/peers
"$venv/bin/python" tests/peers/chat_templates_peer.py "$pagoda"
HF_HUB_OFFLINE=1 "$venv/bin/python" tests/peers/models_peer.py "$pagoda"
