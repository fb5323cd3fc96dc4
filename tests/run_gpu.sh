#!/bin/bash
# Everything that needs a GPU.
#   tests/run_gpu.sh pack            builds preset cuda, and packs what runs on the GPU machine: build/gpu/pagoda_gpu.tar.gz
#   tests/run_gpu.sh run [FOLDER]    on the GPU machine: unpacks that archive, runs the checks, benchmarks and the daemon
#   tests/run_gpu.sh [FOLDER]        both, where one machine has the packages and the GPU
# Each part logs and the next goes on. FOLDER (build/gpu/results) gets summary.txt, all.log and the JSON of the benchmarks;
# the exit code is 0 if no part failed. PARTS="check daemon" runs only parts whose names begin so. PAGODA_GPU_ARCHIVE is
# another archive; PAGODA_CONFORMANCE_DIR the reference data; JOBS how many compilers run at once; EXECUTABLES="PATH ..."
# what to pack instead of building: pagoda, pagoda_cuda.so, conformance_test, the cuda checks and benchmarks.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
root=$PWD
archive=${PAGODA_GPU_ARCHIVE:-$root/build/gpu/pagoda_gpu.tar.gz}
# More would not travel beside the sources.
max_archive_bytes=$((60 * 1000 * 1000))

build_all() {
  local launcher=() targets=() known target
  command -v ccache >/dev/null && launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_CUDA_COMPILER_LAUNCHER=ccache)
  cmake --preset cuda "${launcher[@]}" >/dev/null
  known=$(ninja -C "$build" -t targets all)
  for target in pagoda pagoda_cuda conformance_test cuda_backend_check cuda_attention_check cuda_kernels_bench cuda_attention_bench cuda_step_bench; do
    if grep -q "^$target: phony" <<<"$known"; then targets+=("$target"); else echo "note: no target $target" >&2; fi
  done
  ninja -C "$build" -j"${JOBS:-$(nproc)}" "${targets[@]}"
}

pack() (
  set -e
  folder=$root/build/gpu/pack
  build=$root/build/cuda
  if [ -n "${EXECUTABLES:-}" ]; then
    read -r -a files <<<"$EXECUTABLES"
  else
    build_all
    files=("$build/daemon/pagoda" "$build/daemon/pagoda_cuda.so")
    for file in tests/e2e/conformance_test tests/kernels/cuda/cuda_backend_check tests/kernels/cuda/cuda_attention_check \
      tests/bench/cuda_kernels_bench tests/bench/cuda_attention_bench tests/bench/cuda_step_bench; do
      if [ -x "$build/$file" ]; then files+=("$build/$file"); fi
    done
  fi
  rm -rf "$folder"
  mkdir -p "$folder"
  git rev-parse --short HEAD >"$folder/commit" 2>/dev/null
  tests/pack_gpu.sh "$folder" "${files[@]}"
  data=${PAGODA_CONFORMANCE_DIR:-$root/../shared/conformance}
  if [ -d "$data/models" ]; then
    mkdir -p "$folder/conformance/models"
    for model in "$data"/models/*; do
      # Those that the test takes.
      grep -q -E '"(Llama|Mistral)ForCausalLM"' "$model/config.json" && cp -RL "$model" "$folder/conformance/models/"
    done
    chmod -R u+w "$folder/conformance"
  else
    echo "note: no reference data at $data" >&2
  fi
  shapes=${PAGODA_SHAPES_DIR:-$root/../shared/shapes}
  [ -d "$shapes" ] && cp -RL "$shapes" "$folder/shapes" && chmod -R u+w "$folder/shapes"
  tar -C "$folder" -czf "$archive" .
  bytes=$(stat -c %s "$archive")
  echo "$archive: $bytes bytes; unpacked $(du -sm "$folder" | cut -f1) MiB"
  if [ "$bytes" -gt "$max_archive_bytes" ]; then
    echo "error: the archive has more than $max_archive_bytes bytes" >&2
    exit 1
  fi
)

# part NAME SECONDS COMMAND...: 77 is a skip, as for CTest.
part() {
  local name=$1 seconds=$2 code=0 began=$SECONDS verdict last
  shift 2
  if [ -n "${PARTS:-}" ]; then
    local wanted=false prefix
    for prefix in $PARTS; do [[ $name == "$prefix"* ]] && wanted=true; done
    $wanted || return 0
  fi
  printf '\n===== %s: %s\n' "$name" "$*" >>"$all"
  timeout --kill-after=10 "$seconds" "$@" >"$work/part.log" 2>&1 || code=$?
  # A sanitizer or a test may say the same thing a million times.
  if [ "$(stat -c %s "$work/part.log")" -gt 2000000 ]; then
    { head -c 1000000 "$work/part.log"; printf '\n[...]\n'; tail -c 1000000 "$work/part.log"; } >>"$all"
  else
    cat "$work/part.log" >>"$all"
  fi
  case $code in
    0) verdict=ok ;;
    77) verdict=skip ;;
    124 | 137) verdict=TIMEOUT ;;
    *) verdict="FAIL($code)" ;;
  esac
  [ "$code" -ne 0 ] && [ "$code" -ne 77 ] && failed=$((failed + 1))
  last=$(grep -v '^[[:space:]]*$' "$work/part.log" | tail -n 1 | cut -c1-150)
  printf '%-11s %-28s %4ss  %s\n' "$verdict" "$name" $((SECONDS - began)) "$last" | tee -a "$summary"
  grep -E '^FAIL|^\[  FAILED  \]|^error:' "$work/part.log" | head -n 20 | sed 's/^/            /' | tee -a "$summary"
  return 0
}

check() {
  local name=$1
  shift
  [ -x "$bin/$name" ] || { echo "$name is not in the archive"; return 77; }
  "$bin/$name" "$@"
}

# sanitize TOOL EXECUTABLE [part of a name ...]
sanitize() {
  local tool=$1 name=$2
  shift 2
  local sanitizer
  sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null | head -n 1)
  [ -n "$sanitizer" ] || { echo "no compute-sanitizer"; return 77; }
  [ -x "$bin/$name" ] || { echo "$name is not in the archive"; return 77; }
  # Some cases ask for more memory than there is.
  "$sanitizer" --tool "$tool" --report-api-errors no --error-exitcode 9 --print-limit 20 "$bin/$name" "$@"
}

# Greedy tokens of the prompt `short` against golden.json. In bf16 a near tie may go the other way, and then all that
# follows differs: they must agree up to the first margin of less than 0.3.
daemon() {
  local model=$root/deploy/models/fable-7m address=unix:$work/grpc.sock pid code=1
  "$bin/pagoda" serve "$model" --device="$device" --grpc-address="$address" --metrics-address=127.0.0.1:8012 >"$work/daemon.log" 2>&1 &
  pid=$!
  for _ in $(seq 300); do
    "$bin/pagoda" health --address "$address" >/dev/null 2>&1 && break
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
  done
  local prompt="--token-ids 3777,663,259,562 --temperature 0 --max-tokens 48 --ignore-eos"
  "$bin/pagoda" generate --address "$address" --json $prompt >"$results/generate.json"
  "$bin/pagoda" generate --address "$address" --print-token-ids $prompt >"$work/tokens"
  python3 - "$model/golden.json" "$work/tokens" <<'PYTHON' && code=0
import json, sys
case = json.load(open(sys.argv[1]))["cases"][0]
got = [int(line) for line in open(sys.argv[2])]
want, margins = case["greedy_ids"], case["greedy_margins"]
same = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
print("got", got)
print("margin where they part:", margins[same] if same < len(want) else "none")
print(f"{same} of {len(want)} golden tokens in {len(got)}")
sys.exit(0 if len(got) == len(want) and (same == len(want) or margins[same] < 0.3) else 1)
PYTHON
  # Many at once, with sampling.
  local i waits=()
  for i in $(seq 16); do
    "$bin/pagoda" generate --address "$address" --temperature 0.8 --top-p 0.95 --seed "$i" --max-tokens 64 \
      "Once upon a time" >"$work/many.$i" 2>&1 &
    waits+=($!)
  done
  for i in "${waits[@]}"; do wait "$i" || { echo "error: a request of 16 at once failed"; code=1; }; done
  head -n 3 "$work/many.1"
  python3 "$root/tests/e2e/gpu_batch.py" "$bin/pagoda" "$address" 4096 || code=1
  kill -TERM "$pid" 2>/dev/null
  wait "$pid"
  echo "the daemon ended with $?; its log:"
  cat "$work/daemon.log"
  tail -n 3 "$work/many.2"
  [ "$code" -eq 0 ] && echo "golden tokens as expected, 16 requests at once"
  return "$code"
}

conformance() {
  [ -x "$bin/conformance_test" ] || { echo "conformance_test is not in the archive"; return 77; }
  PAGODA_DEVICE=$device PAGODA_BINARY=$bin/pagoda PAGODA_CONFORMANCE_DIR=$bin/conformance \
    "$bin/conformance_test" --gtest_filter="$1"
}

# The 8B shape with random weights, saved as safetensors, against transformers; then its start from the page cache.
reference() {
  local folder=$work/llama-8b address=unix:$work/grpc.sock pid code
  [ -d "$bin/shapes" ] || { echo "no shapes in the archive"; return 77; }
  python3 -c 'import torch, transformers' || { echo "no torch or transformers"; return 77; }
  python3 "$root/tests/e2e/gpu_reference.py" make "$bin/shapes/llama-3.1-8b" "$folder" || return 1
  "$bin/pagoda" serve "$folder" --device="$device" --grpc-address="$address" --metrics-address=127.0.0.1:0 >"$work/daemon.log" 2>&1 &
  pid=$!
  until "$bin/pagoda" health --address "$address" >/dev/null 2>&1; do
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
  done
  python3 "$root/tests/e2e/gpu_reference.py" compare "$folder" "$bin/pagoda" "$address"
  code=$?
  kill -TERM "$pid" 2>/dev/null
  wait "$pid"
  cat "$work/daemon.log"
  served_json=$results/served_i_checkpoint.json served i --checkpoint="$folder" | tail -n 3
  [ "$code" -eq 0 ] && echo "log-probabilities of 8 prompts of 512 tokens agree with transformers"
  return "$code"
}

# fails CODE TEXT FLAGS...: `pagoda serve` of the small model ends with CODE and says TEXT.
fails() {
  local code=$1 text=$2 got=0
  shift 2
  timeout 60 "$bin/pagoda" serve "$@" --device="$device" --grpc-address="unix:$work/fail.sock" --metrics-address=127.0.0.1:0 \
    >"$work/fail.log" 2>&1 || got=$?
  if [ "$got" -eq "$code" ] && grep -q -e "$text" "$work/fail.log"; then
    echo "ok: exit code $got: $(grep -e "$text" "$work/fail.log" | tail -n 1)"
    return 0
  fi
  echo "error: exit code $got instead of $code, or the log lacks '$text':"
  cat "$work/fail.log"
  return 1
}

# What keeps a daemon from starting on a GPU, and what ends it.
faults() {
  local small=$root/deploy/models/fable-7m large=$bin/shapes/llama-3.1-8b code=0 pid two worker lost end=0
  CUDA_VISIBLE_DEVICES= fails 4 "sees no GPU" "$small" || code=1
  fails 4 "GPU 9 does not exist" "$small" --device-index=9 || code=1
  fails 11 "no KV block fits" "$large" --load-format=dummy --gpu-memory-utilization=0.05 || code=1
  fails 3 "float32" "$small" --dtype=float32 || code=1
  mkdir -p "$work/broken" && echo broken >"$work/broken/pagoda_cuda.so"
  fails 7 "cannot load" "$small" --backend-dir="$work/broken" || code=1
  # Another process on the card: the first takes most of it, the second what is left; the third finds too little.
  "$bin/pagoda" serve "$large" --load-format=dummy --device="$device" --grpc-address="unix:$work/one.sock" \
    --metrics-address=127.0.0.1:0 --kv-cache-memory=115GiB >"$work/one.log" 2>&1 &
  pid=$!
  until "$bin/pagoda" health --address "unix:$work/one.sock" >/dev/null 2>&1 || ! kill -0 "$pid"; do sleep 0.1; done
  "$bin/pagoda" serve "$small" --device="$device" --grpc-address="unix:$work/two.sock" --metrics-address=127.0.0.1:0 \
    --kv-cache-memory=64GiB >"$work/two.log" 2>&1 &
  two=$!
  until "$bin/pagoda" health --address "unix:$work/two.sock" >/dev/null 2>&1 || ! kill -0 "$two"; do sleep 0.1; done
  grep -e "memory plan" -e "KV cache" "$work/one.log" "$work/two.log"
  grep -q "asks for 64.0 GiB, of which" "$work/two.log" || { echo "error: the second pool did not shrink"; code=1; }
  "$bin/pagoda" generate --address "unix:$work/two.sock" --max-tokens 8 "Once upon" || code=1
  fails 11 "could not be had\|does not fit" "$large" --load-format=dummy || code=1
  # A lost worker: calls get UNAVAILABLE, health says so, the daemon ends with its code.
  worker=$(pgrep -P "$two" -f worker | head -n 1)
  "$bin/pagoda" generate --address "unix:$work/two.sock" --max-tokens 2000 --ignore-eos "Once" >"$work/lost.txt" 2>&1 &
  lost=$!
  sleep 0.2
  kill -KILL "$worker"
  wait "$lost"
  grep -q UNAVAILABLE "$work/lost.txt" || { echo "error: no UNAVAILABLE in:"; tail -n 3 "$work/lost.txt"; code=1; }
  wait "$two" || end=$?
  [ "$end" -eq 5 ] || { echo "error: the daemon without a worker ended with $end instead of 5"; code=1; }
  tail -n 2 "$work/two.log"
  kill -TERM "$pid"
  wait "$pid"
  [ "$code" -eq 0 ] && echo "every fault has its message and its exit code"
  return "$code"
}

# served CASE...: steps as they are served, with random weights.
served() {
  [ -d "$bin/shapes" ] || { echo "no shapes in the archive"; return 77; }
  python3 "$root/tests/bench/served_gpu.py" --pagoda="$bin/pagoda" --shapes="$bin/shapes" --device="$device" \
    --logs="$results" --json="${served_json:-$results/served_$1.json}" --commit="$(cat "$bin/commit" 2>/dev/null)" "$@"
}

run() {
  results=${1:-$root/build/gpu/results}
  mkdir -p "$results"
  results=$(cd "$results" && pwd)
  device=${PAGODA_DEVICE:-cuda}
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  bin=$work/bin
  all=$results/all.log
  summary=$results/summary.txt
  failed=0
  mkdir -p "$bin"
  tar -C "$bin" -xzf "$archive" || return 1
  : >"$all"
  : >"$summary"
  # libcublasLt.so.13 comes with CUDA; the packed libraries go first.
  local cublas
  cublas=$(ldconfig -p 2>/dev/null | awk '/libcublasLt\.so\.13 / {print $NF; exit}')
  [ -n "$cublas" ] || cublas=$(ls /usr/local/cuda*/lib64/libcublasLt.so.13 /usr/local/cuda*/targets/*/lib/libcublasLt.so.13 2>/dev/null | head -n 1)
  [ -n "$cublas" ] || cublas=$(find / -name libcublasLt.so.13 -not -path '/proc/*' 2>/dev/null | head -n 1)
  [ -n "$cublas" ] || echo "note: no libcublasLt.so.13 found" | tee -a "$summary"
  export LD_LIBRARY_PATH=$bin${cublas:+:$(dirname "$cublas")}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  # Plans of other builds must not hide what is measured now.
  export XDG_CACHE_HOME=$work/cache
  [ "$device" = cuda ] && export PAGODA_REQUIRE_GPU=1

  # `timeout` runs programs, not functions: a part that is a function runs in a shell of its own.
  export root results device work bin
  export -f check sanitize daemon conformance reference served fails faults
  part machine 60 bash -c 'nvidia-smi; uname -a; nproc; free -g; "$0"/pagoda version; ldd "$0"/pagoda "$0"/pagoda_cuda.so | grep "not found"; true' "$bin"
  part check/backend 300 bash -c 'check cuda_backend_check'
  part check/attention 300 bash -c 'check cuda_attention_check'
  part daemon/golden 120 bash -c 'daemon'
  part daemon/conformance 300 bash -c 'conformance "Conformance.*"'
  part daemon/faults 120 bash -c 'faults'
  part reference/8b 300 bash -c 'reference'
  part sanitizer/memcheck 150 bash -c 'sanitize memcheck cuda_backend_check sample/edges/600 backend/ resolve_tokens scatter gather_rows linear/op/m1 fused pack_linear/bfloat16'
  part sanitizer/racecheck 150 bash -c 'sanitize racecheck cuda_backend_check sample/edges/600 scatter gather_rows rms_norm/bfloat16'
  part sanitizer/initcheck 150 bash -c 'sanitize initcheck cuda_backend_check sample/edges/600 gather_rows'
  part sanitizer/synccheck 150 bash -c 'sanitize synccheck cuda_backend_check sample/edges/600 linear/op/m1'
  part bench/kernels 300 bash -c 'check cuda_kernels_bench --json="$results/kernels.json"'
  part bench/attention 300 bash -c 'check cuda_attention_bench'
  part bench/step 120 bash -c 'check cuda_step_bench --model="$bin/shapes/llama-3.1-8b" --json="$results/step.json" 1x128 64x1024 256x1024'
  part served/d 120 bash -c 'served d'
  part served/e 120 bash -c 'served e'
  part served/f 180 bash -c 'served f'
  part served/g 120 bash -c 'served g'
  part served/i 90 bash -c 'served i'
  echo "$failed parts failed; logs in $all" | tee -a "$summary"
  [ "$failed" -eq 0 ]
}

case "${1:-}" in
  pack) pack ;;
  run) run "${2:-}" ;;
  -*) sed -n '2,10s/^# //p' "$0"; exit 2 ;;
  *) pack && run "${1:-}" ;;
esac
