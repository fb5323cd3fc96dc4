#!/usr/bin/env bash
# The engine protocol against its other side: the stubs of smg-grpc-proto and the gateway smg, both from PyPI, in a virtual
# environment under build/.
#   tests/peers/engine_protocol.sh [PAGODA_BINARY]
set -euo pipefail
cd "$(dirname "$0")/../.."
pagoda=${1:-build/release/daemon/pagoda}
venv=build/venv
[ -x "$venv/bin/pip" ] || python3 -m venv "$venv"
"$venv/bin/pip" install -q grpcio grpcio-reflection grpcio-health-checking smg-grpc-proto smg
"$venv/bin/python" tests/peers/engine_protocol_peer.py "$pagoda"
PATH="$PWD/$venv/bin:$PATH" "$venv/bin/python" tests/peers/gateway_peer.py "$pagoda"
