#!/usr/bin/env bash
# Checks Pagoda against other people's software from PyPI, in a virtual environment under build/.
#   tests/peers/run.sh [PAGODA_BINARY]
set -euo pipefail
cd "$(dirname "$0")/../.."
pagoda=${1:-build/release/daemon/pagoda}
venv=build/venv
[ -x "$venv/bin/pip" ] || python3 -m venv "$venv"
"$venv/bin/pip" install -q grpcio grpcio-tools grpcio-reflection grpcio-health-checking buf-bin openai
tests/peers/buf_lint.sh
mkdir -p build/peers
"$venv/bin/python" -m grpc_tools.protoc -Iproto --python_out=build/peers --grpc_python_out=build/peers \
  proto/pagoda/v1/inference.proto proto/google/rpc/status.proto proto/google/rpc/error_details.proto
PYTHONPATH=build/peers "$venv/bin/python" tests/peers/grpcio_peer.py "$pagoda"
"$venv/bin/python" tests/peers/openai_peer.py "$pagoda"
tests/peers/readme.sh "$pagoda"
tests/peers/engine_protocol.sh "$pagoda"
tests/peers/tokenizers.sh "$pagoda"
tests/peers/operations.sh "$pagoda"
