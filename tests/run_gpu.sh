#!/bin/bash
# Everything that needs a GPU.
#   tests/run_gpu.sh pack            builds preset cuda, and packs what runs on the GPU machine: build/gpu/pagoda_gpu.tar.xz
#   tests/run_gpu.sh run [FOLDER]    on the GPU machine: unpacks that archive, runs the checks, benchmarks and the daemon
#   tests/run_gpu.sh [FOLDER]        both, where one machine has the packages and the GPU
# Checks run side by side, each lane's parts one after another; then what needs the GPU to itself, the benchmarks last. Each
# part logs and the next goes on. FOLDER (build/gpu/results) gets summary.txt, all.log and the JSON of the benchmarks; the
# exit code is 0 if no part failed. PARTS="check daemon" runs only parts whose names begin so; those of "gpus" need two GPUs.
# PAGODA_GPU_SECONDS is how long all may take: parts after it are left out. PAGODA_GPU_ARCHIVE is another archive;
# PAGODA_CONFORMANCE_DIR the reference data; JOBS how many compilers run at once; EXECUTABLES="PATH ..." what to pack instead of
# building: pagoda, pagoda_cuda.so, device_e2e_test, the cuda checks and benchmarks.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
root=$PWD
. tests/gpu_ranks.sh
archive=${PAGODA_GPU_ARCHIVE:-$root/build/gpu/pagoda_gpu.tar.xz}
# More would not travel beside the sources.
max_archive_bytes=$((31 * 1000 * 1000))
# Models of the reference data are dealt out to so many lanes.
conformance_lanes=4

build_all() {
  local launcher=() targets=() known target
  command -v ccache >/dev/null && launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_CUDA_COMPILER_LAUNCHER=ccache)
  cmake --preset cuda "${launcher[@]}" >/dev/null
  known=$(ninja -C "$build" -t targets all)
  for target in pagoda pagoda_cuda device_e2e_test cuda_backend_check cuda_attention_check cuda_group_check cuda_kernels_bench \
    cuda_attention_bench cuda_step_bench cuda_group_bench; do
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
    for file in tests/e2e/device_e2e_test tests/kernels/cuda/cuda_{backend,attention,group}_check \
      tests/bench/cuda_{kernels,attention,step,group}_bench; do
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
      # The sources have some of them.
      cmp -s "$model/model.safetensors" "tests/data/$(basename "$model")/model.safetensors" ||
        cp -RL "$model" "$folder/conformance/models/"
    done
    chmod -R u+w "$folder/conformance"
  else
    echo "note: no reference data at $data" >&2
  fi
  shapes=${PAGODA_SHAPES_DIR:-$root/../shared/shapes}
  [ -d "$shapes" ] && cp -RL "$shapes" "$folder/shapes" && chmod -R u+w "$folder/shapes"
  # The same kernels are in several executables: a dictionary as large as all of it finds them.
  tar -C "$folder" -cf - . | xz -T1 --lzma2=preset=1,dict=128MiB >"$archive"
  bytes=$(stat -c %s "$archive")
  echo "$archive: $bytes bytes; unpacked $(du -sm "$folder" | cut -f1) MiB"
  if [ "$bytes" -gt "$max_archive_bytes" ]; then
    echo "error: the archive has more than $max_archive_bytes bytes" >&2
    exit 1
  fi
)

# part NAME SECONDS COMMAND...: 77 is a skip, as for CTest. Each part has a scratch folder of its own.
part() {
  local name=$1 seconds=$2 code=0 began=$SECONDS verdict last log
  shift 2
  if [ -n "${PARTS:-}" ]; then
    local wanted=false prefix
    for prefix in $PARTS; do [[ $name == "$prefix"* ]] && wanted=true; done
    $wanted || return 0
  fi
  if [ -n "${PAGODA_GPU_SECONDS:-}" ]; then
    local left=$((PAGODA_GPU_SECONDS - SECONDS))
    if [ "$left" -lt 15 ]; then
      echo "no time     $name" | tee -a "$summary"
      return 0
    fi
    [ "$left" -ge "$seconds" ] || seconds=$left
  fi
  scratch=$work/${name//\//.}
  mkdir -p "$scratch"
  log=$scratch/part.log
  scratch=$scratch seconds=$seconds timeout --kill-after=10 "$seconds" "$@" >"$log" 2>&1 || code=$?
  case $code in
    0) verdict=ok ;;
    77) verdict=skip ;;
    124 | 137) verdict=TIMEOUT ;;
    *) verdict="FAIL($code)" ;;
  esac
  [ "$code" -ne 0 ] && [ "$code" -ne 77 ] && touch "$work/failed.${name//\//.}"
  last=$(grep -v '^[[:space:]]*$' "$log" | tail -n 1 | cut -c1-150)
  [[ $verdict == ok || $verdict == skip ]] || add_daemon_logs
  (
    flock 9
    printf '\n===== %s: %s\n' "$name" "$*" >>"$all"
    # A sanitizer or a test may say the same thing a million times.
    if [ "$(stat -c %s "$log")" -gt 2000000 ]; then
      { head -c 1000000 "$log"; printf '\n[...]\n'; tail -c 1000000 "$log"; } >>"$all"
    else
      cat "$log" >>"$all"
    fi
    printf '%-11s %-28s %4ss  %s\n' "$verdict" "$name" $((SECONDS - began)) "$last" | tee -a "$summary"
    grep -E '^FAIL|^\[  FAILED  \]|^error:' "$log" | head -n 20 | sed 's/^/            /' | tee -a "$summary"
  ) 9>"$work/lock"
  return 0
}

# To the log of a part: how its daemons ended.
add_daemon_logs() {
  local file
  for file in "$scratch"/*.log "$scratch"/*/*.log; do
    [ -s "$file" ] && [ "$file" != "$log" ] || continue
    printf -- '---- %s\n' "$file" >>"$log"
    tail -n 60 "$file" >>"$log"
  done
}

check() {
  local name=$1
  shift
  [ -x "$bin/$name" ] || { echo "$name is not in the archive"; return 77; }
  # Plans that are measured beside other work must not be kept.
  XDG_CACHE_HOME=$scratch "$bin/$name" "$@"
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
  XDG_CACHE_HOME=$scratch "$sanitizer" --tool "$tool" --report-api-errors no --error-exitcode 9 --print-limit 20 "$bin/$name" "$@"
}

# serve NAME FLAGS...: starts a daemon and waits until it serves; sets pid and address. Its log is $scratch/NAME.log.
serve() {
  local name=$1
  shift
  address=unix:$scratch/$name.sock
  XDG_CACHE_HOME=${XDG_CACHE_HOME:-$scratch} "$bin/pagoda" serve "$@" --device="$device" --grpc-address="$address" \
    --metrics-address=127.0.0.1:0 --http-address=none >"$scratch/$name.log" 2>&1 &
  pid=$!
  until "$bin/pagoda" health --address "$address" >/dev/null 2>&1; do
    kill -0 "$pid" 2>/dev/null || { cat "$scratch/$name.log"; return 1; }
    sleep 0.1
  done
}

# Greedy tokens of the prompt `short` against golden.json. In bf16 a near tie may go the other way, and then all that
# follows differs: they must agree up to the first margin of less than 0.3.
daemon() {
  local model=$root/deploy/models/fable-7m address pid code=1
  serve daemon "$model"
  local prompt="--token-ids 3777,663,259,562 --temperature 0 --max-tokens 48 --ignore-eos"
  "$bin/pagoda" generate --address "$address" --json $prompt >"$results/generate.json"
  "$bin/pagoda" generate --address "$address" --print-token-ids $prompt >"$scratch/tokens"
  python3 - "$model/golden.json" "$scratch/tokens" <<'PYTHON' && code=0
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
      "Once upon a time" >"$scratch/many.$i" 2>&1 &
    waits+=($!)
  done
  for i in "${waits[@]}"; do wait "$i" || { echo "error: a request of 16 at once failed"; code=1; }; done
  head -n 3 "$scratch/many.1"
  kill -TERM "$pid" 2>/dev/null
  wait "$pid"
  echo "the daemon ended with $?; its log:"
  cat "$scratch/daemon.log"
  tail -n 3 "$scratch/many.2"
  [ "$code" -eq 0 ] && echo "golden tokens as expected, 16 requests at once"
  return "$code"
}

# batch MODEL VOCABULARY_SIZE dense|mixture FLAGS...: requests in a batch of 64 and alone, teacher-forced and greedy, against
# float32 on the CPU.
batch() {
  local model=$1 vocab=$2 kind=$3 address pid code precise precise_pid
  shift 3
  device=cpu serve precise "$model" --dtype=float32 --kv-cache-memory=512MiB --threads=2 || return 1
  precise=$address precise_pid=$pid
  serve batch "$model" --max-num-seqs=64 "$@" || return 1
  python3 "$root/tests/e2e/gpu_batch.py" "$bin/pagoda" "$address" "$precise" "$vocab" "$kind"
  code=$?
  kill -TERM "$pid" "$precise_pid" 2>/dev/null
  wait "$pid" "$precise_pid"
  tail -n 3 "$scratch/batch.log"
  [ "$code" -eq 0 ] && echo "a batch of 64 agrees with requests alone as far as float32 can tell"
  return "$code"
}

# conformance TESTS MODEL...
conformance() {
  local tests=$1 model
  shift
  [ -x "$bin/device_e2e_test" ] || { echo "device_e2e_test is not in the archive"; return 77; }
  mkdir -p "$scratch/conformance/models"
  for model in "$@"; do ln -sfn "$model" "$scratch/conformance/models/$(basename "$model")"; done
  TMPDIR=$scratch XDG_CACHE_HOME=$scratch PAGODA_DEVICE=$device PAGODA_BINARY=$bin/pagoda PAGODA_CONFORMANCE_DIR=$scratch/conformance \
    "$bin/device_e2e_test" --gtest_brief=1 --gtest_filter="$tests"
}

# e2e FILTER: end-to-end tests with their daemons on the GPU.
e2e() {
  [ -x "$bin/device_e2e_test" ] || { echo "device_e2e_test is not in the archive"; return 77; }
  # A filter that names nothing passes.
  "$bin/device_e2e_test" --gtest_list_tests --gtest_filter="$1" | grep -q '^  ' || { echo "error: no test is called $1"; return 1; }
  TMPDIR=$scratch XDG_CACHE_HOME=$scratch PAGODA_DEVICE=$device PAGODA_BINARY=$bin/pagoda PAGODA_SOURCE_DIR=$root "$bin/device_e2e_test" --gtest_brief=1 --gtest_filter="$1"
}

# batches MODEL...: the reference models, each as `batch` has it.
batches() {
  local model vocab code=0
  for model in "$@"; do
    vocab=$(python3 -c 'import json, sys
config = json.load(open(sys.argv[1]))
print(config.get("text_config", config)["vocab_size"])' "$model/config.json")
    echo "$(basename "$model"):"
    # An expert more or less for a rounding: mixtures in the type that rounds less, as in the conformance test.
    case $(basename "$model") in
      mixtral | *_moe) batch "$model" "$vocab" mixture --dtype=float16 || code=1 ;;
      *) batch "$model" "$vocab" dense || code=1 ;;
    esac
  done
  [ "$code" -eq 0 ] && echo "$# models: batches of 64 agree with requests alone as far as float32 can tell"
  return "$code"
}

# Folders of all reference models, those of the sources and those that were packed.
models() {
  local golden
  for golden in "$root"/tests/data/*/golden.json "$bin"/conformance/models/*/golden.json; do
    [ -f "$golden" ] && dirname "$golden"
  done
}

# The 8B shape with random weights, saved as safetensors, against transformers.
reference() {
  local folder=$checkpoint address pid code
  [ -d "$bin/shapes" ] || { echo "no shapes in the archive"; return 77; }
  python3 -c 'import torch, transformers' || { echo "no torch or transformers"; return 77; }
  python3 "$root/tests/e2e/gpu_reference.py" make "$bin/shapes/llama-3.1-8b" "$folder" || return 1
  serve daemon "$folder" || return 1
  python3 "$root/tests/e2e/gpu_reference.py" compare "$folder" "$bin/pagoda" "$address"
  code=$?
  kill -TERM "$pid" 2>/dev/null
  wait "$pid"
  cat "$scratch/daemon.log"
  [ "$code" -eq 0 ] && echo "log-probabilities of 8 prompts of 512 tokens agree with transformers"
  return "$code"
}

# fails CODE TEXT FLAGS...: `pagoda serve` of the small model ends with CODE and says TEXT.
fails() {
  local code=$1 text=$2 got=0
  shift 2
  timeout 60 "$bin/pagoda" serve "$@" --device="$device" --grpc-address="unix:$scratch/fail.sock" --metrics-address=127.0.0.1:0 \
    --http-address=none \
    >"$scratch/fail.log" 2>&1 || got=$?
  if [ "$got" -eq "$code" ] && grep -q -e "$text" "$scratch/fail.log"; then
    echo "ok: exit code $got: $(grep -e "$text" "$scratch/fail.log" | tail -n 1)"
    return 0
  fi
  echo "error: exit code $got instead of $code, or the log lacks '$text':"
  cat "$scratch/fail.log"
  return 1
}

# faulty_driver FOLDER: puts a driver there that has faults, before the real one.
faulty_driver() {
  local folder=$1 real
  real=$(realpath "$(ldconfig -p | awk '/libcuda\.so\.1 / {print $NF; exit}')") || return 1
  mkdir -p "$folder"
  # Needed by its path: its name is that of the one before it.
  gcc -shared -x c /dev/null -o "$folder/real.so" "-Wl,-soname,$real" &&
    gcc -shared -fPIC -O1 "$root/tests/e2e/gpu_faulty_driver.c" -o "$folder/libcuda.so.1" -Wl,-soname,libcuda.so.1 \
      -Wl,--no-as-needed "$folder/real.so" -ldl && export FAULTY_DRIVER_REAL=$real
}

# watch_health ADDRESS: the states that health tells, one a line, until the daemon ends.
watch_health() {
  python3 - "$1" <<'PYTHON'
import sys, grpc
names = ["UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"]
with grpc.insecure_channel(sys.argv[1]) as channel:
    try:
        for message in channel.unary_stream("/grpc.health.v1.Health/Watch")(b""):
            print(names[message[1] if message else 0], flush=True)
    except grpc.RpcError as error:
        print("ended:", error.code().name)
PYTHON
}

# A CUDA error in a step, and drivers and GPUs that are not there or too old.
driver_faults() {
  local small=$root/deploy/models/fable-7m code=0 pid address lost watch end=0 text driver=$scratch/driver
  mkdir -p "$scratch/none" && echo broken >"$scratch/none/libcuda.so.1"
  LD_LIBRARY_PATH=$scratch/none:$LD_LIBRARY_PATH fails 8 "no NVIDIA driver" "$small" || code=1
  faulty_driver "$driver" || return 1
  export LD_LIBRARY_PATH=$driver:$LD_LIBRARY_PATH
  FAULTY_DRIVER_VERSION=12020 fails 9 "supports CUDA 12.2, but this build needs" "$small" || code=1
  FAULTY_DRIVER_CAPABILITY=80 fails 10 "compute capability 8.0" "$small" || code=1
  export FAULTY_DRIVER_FAILS=$scratch/fail
  serve faulty "$small" --max-worker-restarts=0 || return 1
  watch_health "$address" >"$scratch/health.txt" 2>&1 &
  watch=$!
  "$bin/pagoda" generate --address "$address" --max-tokens 2000 --ignore-eos "Once" >"$scratch/lost.txt" 2>&1 &
  lost=$!
  sleep 0.2
  touch "$FAULTY_DRIVER_FAILS"
  wait "$lost"
  wait "$pid" || end=$?
  wait "$watch"
  tail -n 1 "$scratch/lost.txt"
  echo "health: $(tr '\n' ' ' <"$scratch/health.txt")"
  tail -n 5 "$scratch/faulty.log"
  grep -q UNAVAILABLE "$scratch/lost.txt" || { echo "error: no UNAVAILABLE"; code=1; }
  [ "$end" -eq 5 ] || { echo "error: the daemon ended with $end instead of 5"; code=1; }
  grep -q NOT_SERVING "$scratch/health.txt" || { echo "error: health did not say NOT_SERVING"; code=1; }
  for text in "failed for" "step [0-9]" "device 0"; do
    grep -q "$text" "$scratch/faulty.log" || { echo "error: the log does not say '$text'"; code=1; }
  done
  [ "$code" -eq 0 ] && echo "a CUDA error ends worker and daemon as it should; drivers and GPUs that do not do are named"
  return "$code"
}

# What keeps a daemon from starting on a GPU, and what ends it.
faults() {
  local small=$root/deploy/models/fable-7m large=$bin/shapes/llama-3.1-8b code=0 pid address one two worker lost end=0
  CUDA_VISIBLE_DEVICES= fails 4 "sees no GPU" "$small" || code=1
  fails 4 "GPU 9 does not exist" "$small" --device-index=9 || code=1
  fails 11 "no KV block fits" "$large" --load-format=dummy --gpu-memory-utilization=0.05 || code=1
  fails 3 "float32" "$small" --dtype=float32 || code=1
  # The module beside the executable is found whatever the folder of the flag has.
  mkdir -p "$scratch/alone" && cp "$bin/pagoda" "$scratch/alone/"
  bin=$scratch/alone fails 7 "pagoda_cuda.so" "$small" || code=1
  mkdir -p "$scratch/broken" && echo broken >"$scratch/broken/pagoda_cuda.so"
  fails 7 "cannot load" "$small" --backend-dir="$scratch/broken" || code=1
  # Another process on the card: the first takes most of it, the second what is left; the third finds too little.
  serve one "$large" --load-format=dummy --kv-cache-memory=115GiB || code=1
  one=$pid
  serve two "$small" --kv-cache-memory=64GiB --max-worker-restarts=0 || code=1
  two=$pid
  grep -h -e "memory" -e "KV cache" "$scratch/one.log" "$scratch/two.log"
  grep -q "asks for 64.0 GiB, of which" "$scratch/two.log" || { echo "error: the second pool did not shrink"; code=1; }
  "$bin/pagoda" generate --address "$address" --max-tokens 8 "Once upon" || code=1
  fails 11 "could not be had\|does not fit\|no KV block fits" "$large" --load-format=dummy || code=1
  # A lost worker: calls get UNAVAILABLE, health says so, the daemon ends with its code.
  worker=$(pgrep -P "$two" -f worker | head -n 1)
  "$bin/pagoda" generate --address "$address" --max-tokens 2000 --ignore-eos "Once" >"$scratch/lost.txt" 2>&1 &
  lost=$!
  sleep 0.2
  kill -KILL "$worker"
  wait "$lost"
  grep -q UNAVAILABLE "$scratch/lost.txt" || { echo "error: no UNAVAILABLE in:"; tail -n 3 "$scratch/lost.txt"; code=1; }
  wait "$two" || end=$?
  [ "$end" -eq 5 ] || { echo "error: the daemon without a worker ended with $end instead of 5"; code=1; }
  tail -n 2 "$scratch/two.log"
  kill -TERM "$one"
  wait "$one"
  [ "$code" -eq 0 ] && echo "every fault has its message and its exit code"
  return "$code"
}

# served CASE FLAGS...: steps as they are served, with random weights.
served() {
  local case=$1
  shift
  [ -d "$bin/shapes" ] || { echo "no shapes in the archive"; return 77; }
  python3 "$root/tests/bench/served_gpu.py" --pagoda="$bin/pagoda" --shapes="$bin/shapes" --device="$device" \
    --logs="$scratch" --json="$results/served_${case}.json" --commit="$(cat "$bin/commit" 2>/dev/null)" "${case%%_*}" "$@"
}

# Everything that can share the GPU. Pools stay small, so that all find room.
run_checks() {
  export PAGODA_KV_CACHE_MEMORY=2GiB
  local lane i all_models matrix=()
  mapfile -t all_models < <(models)
  part check/backend 400 bash -c 'check cuda_backend_check' &
  part check/attention 400 bash -c 'check cuda_attention_check' &
  for ((lane = 0; lane < conformance_lanes; ++lane)); do
    local share=()
    for ((i = lane; i < ${#all_models[@]}; i += conformance_lanes)); do share+=("${all_models[i]}"); done
    [ "${#share[@]}" -ne 0 ] || continue
    part "conformance/cover.$lane" 400 bash -c 'conformance "Conformance.*-Conformance.Ranks*" "$@"' - "${share[@]}" &
    part "daemon/batch.$lane" 400 bash -c 'batches "$@"' - "${share[@]}" &
  done
  for i in "${all_models[@]}"; do
    case $(basename "$i") in llama_gqa | qwen3) matrix+=("$i") ;; esac
  done
  for i in "${matrix[@]}"; do
    part "conformance/matrix.$(basename "$i")" 400 bash -c 'conformance "ConformanceLong.*" "$@"' - "$i" &
  done
  (
    part daemon/golden 120 bash -c 'daemon'
    part daemon/batch 300 bash -c 'batch "$root/deploy/models/fable-7m" 4096 dense'
    part daemon/batch_float16 300 bash -c 'batch "$root/deploy/models/fable-7m" 4096 dense --dtype=float16 --block-size=32'
  ) &
  part reference/8b 400 bash -c 'reference' &
  (
    # What compares bits with other batches is for a device that is exact.
    part e2e/sampling 200 bash -c 'e2e "SamplingCases.B018*:SamplingCases.B020*:SamplingCases.B027*:SamplingCases.B028*"'
    part e2e/beams 200 bash -c 'e2e "Beams.*"'
    part e2e/guided 200 bash -c 'e2e "Guided.*"'
    part e2e/speculation 200 bash -c 'e2e "Speculation.*"'
  ) &
  part e2e/recovery 400 bash -c 'e2e "Recovery.*"' &
  part sanitizer/memcheck 400 bash -c 'sanitize memcheck cuda_backend_check sample/edges/600 backend/ resolve_tokens scatter gather_rows linear/op/m1 fused pack_linear/bfloat16 route_experts/3 grouped_linear/bfloat16/5 grouped_linear/bfloat16/300/2_of_4 combine_experts layer_norm/bfloat16/5x33 head_norm/bfloat16 activate/bfloat16/1 add_' &
  part sanitizer/racecheck 400 bash -c 'sanitize racecheck cuda_backend_check sample/edges/600 scatter gather_rows rms_norm/bfloat16 route_experts/3 grouped_linear/bfloat16/5 layer_norm/bfloat16/5x33' &
  part sanitizer/initcheck 400 bash -c 'sanitize initcheck cuda_backend_check sample/edges/600 gather_rows route_experts/3 combine_experts/bfloat16/1x' &
  part sanitizer/synccheck 400 bash -c 'sanitize synccheck cuda_backend_check sample/edges/600 linear/op/m1 grouped_linear/bfloat16/5 route_experts/3' &
  wait
  unset PAGODA_KV_CACHE_MEMORY
}

run_benchmarks() {
  export XDG_CACHE_HOME=$work/cache
  part bench/kernels 300 bash -c '"$bin/cuda_kernels_bench" --json="$results/kernels.json"'
  part bench/attention 300 bash -c 'PAGODA_BENCH_JSON=$results/attention.jsonl "$bin/cuda_attention_bench"'
  part bench/step 120 bash -c '"$bin/cuda_step_bench" --model="$bin/shapes/llama-3.1-8b" --json="$results/step.json" 1x128 64x1024 256x1024'
  part served/i 90 bash -c 'served i'
  [ ! -d "$checkpoint" ] || part served/i_checkpoint 90 bash -c 'served i_checkpoint --checkpoint="$checkpoint"'
  part served/d 120 bash -c 'served d'
  part served/e 120 bash -c 'served e'
  part served/g 120 bash -c 'served g'
  part served/f 180 bash -c 'served f'
}

run() {
  results=${1:-$root/build/gpu/results}
  mkdir -p "$results"
  results=$(cd "$results" && pwd)
  device=${PAGODA_DEVICE:-cuda}
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  bin=$work/bin
  checkpoint=$work/llama-8b
  all=$results/all.log
  summary=$results/summary.txt
  mkdir -p "$bin"
  tar -C "$bin" -xf "$archive" || return 1
  : >"$all"
  : >"$summary"
  # libcublasLt.so.13 comes with CUDA; the packed libraries go first.
  local cublas
  cublas=$(ldconfig -p 2>/dev/null | awk '/libcublasLt\.so\.13 / {print $NF; exit}')
  [ -n "$cublas" ] || cublas=$(ls /usr/local/cuda*/lib64/libcublasLt.so.13 /usr/local/cuda*/targets/*/lib/libcublasLt.so.13 2>/dev/null | head -n 1)
  [ -n "$cublas" ] || cublas=$(find / -name libcublasLt.so.13 -not -path '/proc/*' 2>/dev/null | head -n 1)
  [ -n "$cublas" ] || echo "note: no libcublasLt.so.13 found" | tee -a "$summary"
  # And NCCL's of the packages that have it.
  nccl=$(ldconfig -p 2>/dev/null | awk '/libnccl\.so\.2 / {print $NF; exit}')
  [ -n "$nccl" ] || nccl=$(python3 -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0] + "/lib/libnccl.so.2")' 2>/dev/null)
  [ -n "$nccl" ] || nccl=$(find / -name libnccl.so.2 -not -path '/proc/*' 2>/dev/null | head -n 1)
  [ -n "$nccl" ] || echo "note: no libnccl.so.2 found" | tee -a "$summary"
  export LD_LIBRARY_PATH=$bin${cublas:+:$(dirname "$cublas")}${nccl:+:$(dirname "$nccl")}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  [ "$device" = cuda ] && export PAGODA_REQUIRE_GPU=1

  # `timeout` runs programs, not functions: a part that is a function runs in a shell of its own.
  export root results device work bin checkpoint nccl
  export -f check sanitize serve daemon batch batches conformance e2e reference served fails faults faulty_driver watch_health driver_faults ranks_refused ranks_8b \
    ranks_measured ranks_e2e
  part machine 60 bash -c 'nvidia-smi; uname -a; nproc; free -g; "$0"/pagoda version; ldd "$0"/pagoda "$0"/pagoda_cuda.so | grep "not found"; true' "$bin"
  run_checks
  part daemon/faults 120 bash -c 'faults'
  part daemon/driver_faults 120 bash -c 'driver_faults'
  run_ranks
  [ "$(nvidia-smi -L 2>/dev/null | wc -l)" -lt 2 ] || run_gpus
  run_benchmarks
  local failed
  failed=$(find "$work" -maxdepth 1 -name 'failed.*' | wc -l)
  echo "$failed parts failed in $SECONDS s; logs in $all" | tee -a "$summary"
  [ "$failed" -eq 0 ]
}

case "${1:-}" in
  pack) pack ;;
  run) run "${2:-}" ;;
  -*) sed -n '2,12s/^# //p' "$0"; exit 2 ;;
  *) pack && run "${1:-}" ;;
esac
