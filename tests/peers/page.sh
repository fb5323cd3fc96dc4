#!/usr/bin/env bash
# The page at / in a real Chromium without a display (Debian's package, driven by playwright from PyPI). Screenshots are kept
# under build/page.
#   tests/peers/page.sh [PAGODA_BINARY]
set -euo pipefail
cd "$(dirname "$0")/../.."
pagoda=${1:-build/release/daemon/pagoda}
venv=build/venv
if ! command -v chromium >/dev/null; then
  sudo=()
  [ "$(id -u)" -eq 0 ] || sudo=(sudo)
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null
fi
[ -x "$venv/bin/pip" ] || python3 -m venv "$venv"
"$venv/bin/pip" install -q playwright grpcio grpcio-health-checking
PYTHONPATH=tests/peers "$venv/bin/python" tests/peers/page_peer.py "$pagoda"
