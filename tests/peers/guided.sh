#!/usr/bin/env bash
# 200 schemas with 1,000 seeds each through a daemon with random weights, outputs validated with jsonschema from PyPI (ten
# minutes on 16 cores), in a virtual environment under build/, or with the python of PAGODA_PEER_PYTHON that has grpcio and
# jsonschema[format], and grpcio-tools unless build/peers holds the stubs already.
#   tests/peers/guided.sh [PAGODA_BINARY [--seeds=N] [--jobs=J] [--daemons=D] [--device=cpu|cuda] [SCHEMA...]]
set -euo pipefail
cd "$(dirname "$0")/../.."
pagoda=${1:-build/release/daemon/pagoda}
shift || true
python=${PAGODA_PEER_PYTHON:-}
if [ -z "$python" ]; then
  venv=build/venv
  python=$venv/bin/python
  [ -x "$venv/bin/pip" ] || python3 -m venv "$venv"
  "$venv/bin/pip" install -q grpcio grpcio-tools "jsonschema[format]"
fi
mkdir -p build/peers
if "$python" -c "import grpc_tools" 2>/dev/null; then
  "$python" -m grpc_tools.protoc -Iproto --python_out=build/peers --grpc_python_out=build/peers \
    proto/pagoda/v1/inference.proto proto/google/rpc/status.proto proto/google/rpc/error_details.proto
fi
export PYTHONPATH=build/peers:tests/peers
"$python" tests/peers/guided_peer.py "$pagoda" "$@"
