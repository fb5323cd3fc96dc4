#!/usr/bin/env bash
# 200 schemas with 1,000 seeds each through a daemon with random weights, outputs validated with jsonschema from PyPI (ten
# minutes on 16 cores), in a virtual environment under build/, or with the python of PAGODA_PEER_PYTHON that has grpcio,
# grpcio-tools, grpcio-health-checking, grpcio-reflection and jsonschema[format].
#   tests/peers/guided.sh [PAGODA_BINARY [--seeds=N] [--jobs=J] [--device=cpu|cuda] [SCHEMA...]]
set -euo pipefail
cd "$(dirname "$0")/../.."
pagoda=${1:-build/release/daemon/pagoda}
shift || true
python=${PAGODA_PEER_PYTHON:-}
if [ -z "$python" ]; then
  venv=build/venv
  python=$venv/bin/python
  [ -x "$venv/bin/pip" ] || python3 -m venv "$venv"
  "$venv/bin/pip" install -q grpcio grpcio-tools grpcio-reflection grpcio-health-checking "jsonschema[format]"
fi
mkdir -p build/peers
"$python" -m grpc_tools.protoc -Iproto --python_out=build/peers --grpc_python_out=build/peers \
  proto/pagoda/v1/inference.proto proto/google/rpc/status.proto proto/google/rpc/error_details.proto
export PYTHONPATH=build/peers:tests/peers
"$python" tests/peers/guided_peer.py "$pagoda" "$@"
