#!/usr/bin/env bash
# Runs libFuzzer targets (preset fuzz), each for a while from its corpus, one a core. An input that fails is kept under
# build/fuzz/found; once the fault is fixed it belongs into tests/fuzz/corpus.
#   tests/fuzz/run.sh [TARGET...]     default: all; PAGODA_FUZZ_SECONDS (default 30) each
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=${PAGODA_FUZZ_SECONDS:-30}
targets=("$@")
if [ $# -eq 0 ]; then
  for corpus in tests/fuzz/corpus/*/; do targets+=("$(basename "$corpus")"); done
fi

fuzz() {  # target
  local target=$1
  local corpus=tests/fuzz/corpus/$target
  local grown=build/fuzz/grown/$target  # what was learnt here before
  local found=build/fuzz/found/$target
  local log=build/fuzz/$target.log
  mkdir -p "$grown" "$found"
  # Words of the seeds are what mutations are made of.
  { grep -haoE '[A-Za-z_][A-Za-z0-9_.]{1,30}' "$corpus"/* || true; } | sort -u | sed 's/.*/"&"/' >"build/fuzz/$target.dict"
  if "build/fuzz/tests/fuzz/$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=16384 \
    -dict="build/fuzz/$target.dict" -artifact_prefix="$found/" -print_final_stats=1 "$grown" "$corpus" >"$log" 2>&1; then
    echo "$target: $(grep -oE 'number_of_executed_units: [0-9]+' "$log" | grep -oE '[0-9]+') inputs, no finding"
  else
    tail -n 40 "$log"
    echo "$target: FINDING, kept in $found"
    return 1
  fi
}

status=0
running=0
for target in "${targets[@]}"; do
  if [ "$running" -ge "$(nproc)" ]; then
    wait -n || status=1
    running=$((running - 1))
  fi
  fuzz "$target" &
  running=$((running + 1))
done
while [ "$running" -gt 0 ]; do
  wait -n || status=1
  running=$((running - 1))
done
[ "$status" -eq 0 ] || { echo "error: there are findings" >&2; exit 1; }
