#!/usr/bin/env bash
# Installs what building and testing Pagoda needs, from Debian's packages; only what is missing.
#   deploy/install-deps.sh            to build and run
#   deploy/install-deps.sh --tests    and to test
#   deploy/install-deps.sh --all      and for the long tests (clang, sanitizers, linters)
set -euo pipefail

packages=(g++ cmake ninja-build pkg-config git ca-certificates
  libgrpc++-dev protobuf-compiler-grpc libprotobuf-dev protobuf-compiler libabsl-dev
  prometheus-cpp-dev nlohmann-json3-dev libsimdjson-dev libpcre2-dev libicu-dev libcli11-dev libyaml-cpp-dev
  libspdlog-dev libxxhash-dev libboost-dev)
case "${1:-}" in
  "") ;;
  --tests) packages+=(libgtest-dev libgmock-dev libbenchmark-dev python3 clang libclang-rt-14-dev) ;;
  --all) packages+=(libgtest-dev libgmock-dev libbenchmark-dev python3 python3-venv clang libclang-rt-14-dev clang-format
                    clang-tidy) ;;
  *) echo "usage: $0 [--tests|--all]" >&2; exit 2 ;;
esac

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "dependencies: all installed"
  exit 0
fi
echo "dependencies: installing ${missing[*]}"
sudo=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "error: not root and no sudo; install by hand: ${missing[*]}" >&2; exit 1; }
  sudo=(sudo)
fi
export DEBIAN_FRONTEND=noninteractive
"${sudo[@]}" apt-get update -qq
"${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
echo "dependencies: installed"
