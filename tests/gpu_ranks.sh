# Parts of run_gpu.sh, which reads this file: workers that share a model, on one GPU and on several.

# What two workers that share a model, and here one GPU, are not started for.
ranks_refused() {
  local small=$root/deploy/models/fable-7m code=0
  fails 2 "nccl takes one worker a GPU" "$small" --tensor-parallel-size=2 --devices=0,0 --tensor-parallel-group=nccl || code=1
  fails 2 "expected a GPU for each of the 2 workers" "$small" --tensor-parallel-size=2 --devices=0 || code=1
  fails 4 "GPU 9 does not exist" "$small" --tensor-parallel-size=2 --devices=0,9 || code=1
  fails 3 "tensor ranks cannot share the model" "$small" --tensor-parallel-size=7 --devices=0,0,0,0,0,0,0 || code=1
  [ "$code" -eq 0 ] && echo "workers that cannot share a model on these GPUs are refused with the reason"
  return "$code"
}

# The log-probabilities of a prompt of the 8B shape with random weights, from one worker and from two on one GPU; then a
# worker is killed under load.
ranks_8b() {
  local large=$bin/shapes/llama-3.1-8b code=0 pid address ids one worker stream
  [ -d "$large" ] || { echo "no shapes in the archive"; return 77; }
  ids=$(seq -s, 1000 997 128000)
  serve one "$large" --load-format=dummy --kv-cache-memory=4GiB || return 1
  "$bin/pagoda" generate --address "$address" --json --token-ids "$ids" --prompt-logprobs 1 --temperature 0 --max-tokens 1 \
    --ignore-eos >"$scratch/one.json" || code=1
  kill -TERM "$pid"
  wait "$pid"
  serve two "$large" --load-format=dummy --tensor-parallel-size=2 --devices=0,0 || return 1
  "$bin/pagoda" generate --address "$address" --json --token-ids "$ids" --prompt-logprobs 1 --temperature 0 --max-tokens 1 \
    --ignore-eos >"$scratch/two.json" || code=1
  python3 - "$scratch/one.json" "$scratch/two.json" <<'PYTHON' || code=1
import json, sys

def logprobs(value):
    """Of the prompt's own tokens, wherever they are in the response."""
    if isinstance(value, dict):
        rows = value.get("promptLogprobs")
        if isinstance(rows, list):
            return [row["token"]["logprob"] for row in rows if "logprob" in row["token"]]
        value = list(value.values())
    for item in value if isinstance(value, list) else []:
        found = logprobs(item)
        if found:
            return found
    return []

one, two = ([json.loads(line) for line in open(path) if line.strip()] for path in sys.argv[1:3])
one, two = logprobs(one), logprobs(two)
worst = max((abs(a - b) for a, b in zip(one, two)), default=float("inf"))
print(f"{len(one)} and {len(two)} log-probabilities, {min(one, default=0):.3f} to {max(one, default=0):.3f}; they differ by {worst:.4f} at most")
sys.exit(0 if len(one) > 100 and len(one) == len(two) and worst < 0.3 else 1)
PYTHON
  "$bin/pagoda" generate --address "$address" --token-ids "$ids" --max-tokens 64 --ignore-eos --print-token-ids \
    >"$scratch/stream" 2>&1 &
  stream=$!
  sleep 3
  worker=$(pgrep -P "$pid" -f worker | tail -n 1)
  kill -KILL "$worker"
  wait "$stream" || { echo "error: a stream was lost:"; tail -n 3 "$scratch/stream"; code=1; }
  [ "$(grep -c '^[0-9]' "$scratch/stream")" -eq 64 ] || { echo "error: not 64 tokens"; code=1; }
  kill -TERM "$pid"
  wait "$pid"
  grep -e memory -e ranks -e "KV cache" -e lost -e recover -e replac "$scratch/two.log"
  [ "$code" -eq 0 ] && echo "the 8B shape gives the same with two workers on one GPU; a killed one was replaced"
  return "$code"
}

# ranks_measured CASE...: what served_ranks.py measures, with the seconds of this part.
ranks_measured() {
  [ -d "$bin/shapes" ] || { echo "no shapes in the archive"; return 77; }
  python3 "$root/tests/bench/served_ranks.py" --pagoda="$bin/pagoda" --shapes="$bin/shapes" --logs="$scratch" \
    --json="$results/ranks.json" --commit="$(cat "$bin/commit" 2>/dev/null)" --seconds=$((seconds - 10)) "$@"
}

# ranks_e2e GROUP TEST COMMAND...: with a GPU for each of two ranks.
ranks_e2e() {
  local group=$1
  shift
  PAGODA_RANK_DEVICES=0,1 PAGODA_RANK_GROUP=$group PAGODA_KV_CACHE_MEMORY=2GiB "$@"
}

# Workers that share a model take turns on one GPU: correctness counts, not speed.
run_ranks() {
  local all_models
  mapfile -t all_models < <(models)
  part daemon/ranks.refused 60 bash -c 'ranks_refused'
  part daemon/ranks.golden 120 bash -c 'PAGODA_TENSOR_PARALLEL_SIZE=2 PAGODA_DEVICES=0,0 daemon'
  part daemon/ranks.8b 150 bash -c 'ranks_8b'
  part daemon/kills 100 bash -c 'e2e "DaemonKills.*"'
  part daemon/ranks.recovery 200 bash -c 'e2e "RecoveryOfRanks.*"'
  part daemon/ranks.conformance 400 bash -c 'PAGODA_KV_CACHE_MEMORY=2GiB conformance "Conformance.Ranks*" "$@"' - "${all_models[@]}"
  part daemon/ranks.served 150 bash -c 'served r'
  # Beside other work they would be late.
  part daemon/ranks.groups 300 bash -c 'check cuda_group_check x1/'
}

# The same on two GPUs of a host: what is right side by side, then what needs both to itself.
run_gpus() {
  local all_models group
  mapfile -t all_models < <(models)
  part gpus/links 30 bash -c 'nvidia-smi topo -m; nvidia-smi topo -p2p r; ls -l "$nccl"'
  for group in ipc nccl; do
    part "gpus/conformance.$group" 150 bash -c 'ranks_e2e "$0" conformance "Conformance.Ranks*" "$@"' "$group" "${all_models[@]}" &
  done
  wait
  part gpus/tpot.8b.one 50 bash -c 'ranks_measured llama-3.1-8b/one'
  for group in ipc nccl; do
    part "gpus/tpot.8b.$group" 50 bash -c 'ranks_measured "llama-3.1-8b/$0"' "$group"
  done
  part gpus/bench 60 bash -c '"$bin/cuda_group_bench" --json="$results/groups.json"'
  part gpus/tpot.70b.ipc 60 bash -c 'ranks_measured llama-3.1-70b/ipc'
  part gpus/compare 10 bash -c 'ranks_measured compare'
  for group in ipc nccl; do
    part "gpus/recovery.8b.$group" 85 bash -c 'ranks_measured "recovery/llama-3.1-8b/$0"' "$group"
    part "gpus/recovery.$group" 100 bash -c 'ranks_e2e "$0" e2e "RecoveryOfRanks.*"' "$group"
  done
  part gpus/replicas 60 bash -c 'PAGODA_RANK_DEVICES=0,1 PAGODA_KV_CACHE_MEMORY=2GiB e2e "Replicas.*"'
  part gpus/groups 90 bash -c 'check cuda_group_check 2x2 nccl/processes/1x1'
  part gpus/tpot.70b.nccl 60 bash -c 'ranks_measured llama-3.1-70b/nccl'
  part gpus/compare 10 bash -c 'ranks_measured compare'
}
