#!/usr/bin/env bash
# 100,000 random Unicode strings for each tokenizer family against the library `tokenizers` from PyPI (some minutes a
# family), in a virtual environment under build/. PAGODA_CONFORMANCE_DIR: published tokenizers to compare, too.
#   tests/peers/tokenizers.sh [PAGODA_BINARY [--strings=N] [FAMILY...]]
set -euo pipefail
cd "$(dirname "$0")/../.."
pagoda=${1:-build/release/daemon/pagoda}
shift || true
venv=build/venv
[ -x "$venv/bin/pip" ] || python3 -m venv "$venv"
"$venv/bin/pip" install -q "tokenizers==0.23.3" "sentencepiece==0.2.*" protobuf
PYTHONPATH=tests/peers "$venv/bin/python" tests/peers/tokenizer_peer.py "$pagoda" "$@"
PYTHONPATH=tests/peers "$venv/bin/python" tests/peers/sentencepiece_peer.py "$pagoda" "$@"
