#!/usr/bin/env bash
# Installs what is missing, builds and runs the tests.
#   tests/run.sh          every test but the long ones once: engine and parsers under ASan + UBSan, the rest in the release
#                         build; where nvcc is found, pagoda_cuda.so is compiled too
#   tests/run.sh --all    all tests in both builds, and the long ones (all of `long`, TSan, clang -Wthread-safety, clang-tidy,
#                         fuzzers, and from PyPI buf lint and a grpcio client); fails on any skip
# PAGODA_CONFORMANCE_DIR names the reference data (default: ../shared/conformance); tests that need it skip where it is absent.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD

all=false
case "${1:-}" in
  "") ;;
  --all) all=true ;;
  *) echo "usage: $0 [--all]" >&2; exit 2 ;;
esac
export PAGODA_CONFORMANCE_DIR=${PAGODA_CONFORMANCE_DIR:-$root/../shared/conformance}
# What draws or steps a hundred thousand times everywhere does so in one place only.
$all || export PAGODA_QUICK_TESTS=1
[ -d "$PAGODA_CONFORMANCE_DIR" ] || echo "note: no reference data at $PAGODA_CONFORMANCE_DIR; the tests that need it will skip"

step() { printf '\n==> %s\n' "$*"; }
options=()
logs=$root/build/test-logs
mkdir -p "$logs"
build() {  # preset [targets...]
  local preset=$1
  shift
  cmake --preset "$preset" "${options[@]}" >"$logs/configure-$preset.log" 2>&1 || { cat "$logs/configure-$preset.log"; return 1; }
  cmake --build "build/$preset" ${1+--target "$@"} >"$logs/build-$preset.log" 2>&1 || { tail -n 60 "$logs/build-$preset.log"; return 1; }
}
skipped=0
# A daemon of an end-to-end test has threads of its own.
jobs=$(($(nproc) / 2 > 2 ? $(nproc) / 2 : 2))
run_tests() {  # preset ctest-arguments...
  local preset=$1 log=$logs/test-$1-$RANDOM.log status=0
  shift
  ctest --test-dir "build/$preset" --output-on-failure -j"$jobs" "$@" >"$log" 2>&1 || status=$?
  local skips
  skips=$(grep -cE '\*\*\*Skipped' "$log" || true)
  skipped=$((skipped + skips))
  if [ "$status" -ne 0 ]; then
    grep -vE '(Start +[0-9]+:|Passed +[0-9.]+ sec)' "$log" | tail -n 200
  else
    grep -E '\*\*\*Skipped' "$log" || true
    grep -E '(tests passed|Total Test time)' "$log"
  fi
  return "$status"
}

step "dependencies"
if $all; then deploy/install-deps.sh --all; else deploy/install-deps.sh --tests; fi

step "release: build"
# Benchmarks are compiled where all is.
options+=(-DPAGODA_BENCHMARKS="$($all && echo ON || echo OFF)")
if $all; then build release; else build release plain_tests; fi
# The whole module is compiled where that is possible, by what the tests leave of the cores.
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null || true)
module=
if [ -n "$nvcc" ]; then
  set -m  # a process group of its own, so that its compilers can be ended
  (
    renice -n 19 "$BASHPID" >/dev/null
    options+=(-DCMAKE_CUDA_COMPILER="$nvcc")
    build cuda pagoda_cuda
  ) &
  module=$!
  set +m
  trap 'kill -- "-$module" 2>/dev/null || true' EXIT
fi
step "release: tests"
# What is not built has no label.
if $all; then run_tests release; else run_tests release -L 'unit|kernel|grpc|e2e|structure' -LE 'long'; fi

# With --all everything that links no gRPC.
asan_targets=(asan_tests) asan_labels='unit' asan_left_out='long|plain'
if $all; then asan_targets+=(asan_more_tests) asan_labels='unit|kernel' asan_left_out='long'; fi
step "asan: build (engine, text, model files, worker processes)"
build asan "${asan_targets[@]}"
step "asan: tests (AddressSanitizer and UndefinedBehaviorSanitizer)"
run_tests asan -L "$asan_labels" -LE "$asan_left_out"

if [ -z "$nvcc" ]; then
  step "cuda: skipped, there is no nvcc here: pagoda_cuda.so is NOT compiled"
else
  step "cuda: the module (sm_90a, $nvcc); without a driver it must say so and never serve"
  wait "$module"
  echo "compiled: $(stat -c %s build/cuda/daemon/pagoda_cuda.so) bytes"
  tests/cuda_module.sh build/release/daemon/pagoda build/cuda/daemon
fi

if $all; then
  step "tsan: build"
  build tsan tsan_tests
  step "tsan: tests (ThreadSanitizer, what links no gRPC; without the million steps, which one thread makes)"
  run_tests tsan -L 'unit' -LE 'long' -E 'MillionSteps'
  step "clang: -Wthread-safety -Werror"
  build clang
  step "clang-tidy: what differs from main"
  tests/clang_tidy.sh
  step "fuzz: build"
  build fuzz fuzzers
  step "fuzz: each target for ${PAGODA_FUZZ_SECONDS:-30} s"
  tests/fuzz/run.sh
  step "peers: buf lint, grpcio client"
  tests/peers/run.sh
fi

step "summary"
echo "skipped: $skipped"
if $all && [ "$skipped" -ne 0 ]; then
  echo "error: --all allows no skipped test" >&2
  exit 1
fi
echo "all tests passed"
