#!/usr/bin/env bash
# From a fresh clone to text: installs what is missing, builds, serves the default model on 127.0.0.1:8001, prints one
# continuation streamed through the gRPC API, and goes on serving until Ctrl-C.
#   deploy/quickstart.sh           build, show, serve
#   deploy/quickstart.sh --once    build, show, exit 0
set -euo pipefail
cd "$(dirname "$0")/.."

once=false
case "${1:-}" in
  "") ;;
  --once) once=true ;;
  *) echo "usage: $0 [--once]" >&2; exit 2 ;;
esac
address=${PAGODA_GRPC_ADDRESS:-127.0.0.1:8001}
http=${PAGODA_HTTP_ADDRESS:-127.0.0.1:8000}  # the daemon's default; it reads the variable too

deploy/install-deps.sh
mkdir -p build
echo "build: build/quickstart"
cmake --preset release -B build/quickstart -DPAGODA_TESTS=OFF -DPAGODA_BENCHMARKS=OFF >build/quickstart.log 2>&1 ||
  { mkdir -p build; cmake --preset release -B build/quickstart -DPAGODA_TESTS=OFF -DPAGODA_BENCHMARKS=OFF; }
cmake --build build/quickstart --target pagoda
pagoda=build/quickstart/daemon/pagoda

# A request's two lines in the log would break its story.
"$pagoda" serve --grpc-address="$address" 2> >(grep --line-buffered -vE 'request (started|ended)' >&2) &
server=$!
trap 'kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true' EXIT
for _ in $(seq 150); do
  "$pagoda" health --address="$address" >/dev/null 2>&1 && break
  kill -0 "$server" 2>/dev/null || { echo "error: the daemon ended; its reason is above" >&2; exit 1; }
  sleep 0.2
done
"$pagoda" health --address="$address" >/dev/null

echo
echo "\$ pagoda generate --address=$address --max-tokens=80 --seed=7 'Once upon a time'"
"$pagoda" generate --address="$address" --max-tokens=80 --seed=7 'Once upon a time'
echo
if $once; then
  exit 0
fi
echo "serving gRPC on $address, OpenAI's API on http://$http/v1 and metrics on 127.0.0.1:8002; Ctrl-C stops"
trap 'kill "$server" 2>/dev/null || true' INT TERM
wait "$server" || true
trap - EXIT
