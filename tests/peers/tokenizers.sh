#!/usr/bin/env bash
# 100,000 random Unicode strings for each tokenizer family against the libraries `tokenizers` and `sentencepiece` from
# PyPI (a minute a family and core), in a virtual environment under build/, or with the python of PAGODA_PEER_PYTHON
# that has them. PAGODA_CONFORMANCE_DIR: published tokenizers to compare, too.
#   tests/peers/tokenizers.sh [PAGODA_BINARY [--strings=N] [--seed=S] [--jobs=J] [--families=FOLDER] [FAMILY...]]
# A machine without the trainers' texts gets the tokenizers in a FOLDER that `tokenizer_peer.py - --write=FOLDER` and
# `sentencepiece_peer.py - --write=FOLDER` made.
set -euo pipefail
cd "$(dirname "$0")/../.."
pagoda=${1:-build/release/daemon/pagoda}
shift || true
python=${PAGODA_PEER_PYTHON:-}
if [ -z "$python" ]; then
  venv=build/venv
  python=$venv/bin/python
  [ -x "$venv/bin/pip" ] || python3 -m venv "$venv"
  "$venv/bin/pip" install -q "tokenizers==0.23.3" "sentencepiece==0.2.*" protobuf
fi
PYTHONPATH=tests/peers "$python" tests/peers/tokenizer_peer.py "$pagoda" "$@"
PYTHONPATH=tests/peers "$python" tests/peers/sentencepiece_peer.py "$pagoda" "$@"
