#!/usr/bin/env python3
"""Measures ranks that share a model, a GPU each: TPOT by batch against one rank, and pauses of streams whose workers are lost.

    served_ranks.py --pagoda=BINARY --shapes=FOLDER --json=FILE [--seconds=N] CASE...

Cases, each of which adds to FILE:
  SHAPE/GROUP           TPOT at several numbers of sequences; SHAPE is a folder of --shapes, GROUP one (rank), ipc or nccl
  recovery/SHAPE/GROUP  each rank is killed, stopped and made to hang while 16 streams run
  compare               what is in FILE: how much faster two ranks are, and whether they give the same
Batches that --seconds leaves no time for are left out, and named.
"""

import argparse
import json
import math
import os
import signal
import subprocess
import tempfile
import threading
import time

from served_gpu import Daemon, floor_ms, latency_row, shape

BATCHES = {"llama-3.1-70b": (1, 8, 64)}
ALL_BATCHES = (1, 2, 4, 8, 16, 32, 64)
SETTLE_SECONDS = 8  # in which a worker measures the products it was asked for
NUM_STREAMS = 16
STREAM_TOKENS = 2600
TOKENS_BETWEEN_STRIKES = 350
PAUSE_SECONDS = 0.4  # nothing but a loss takes so long
# Faults of the fifth and sixth start, in steps after TOKENS_BETWEEN_STRIKES of the strike before.
HANGS = "hang@600:0:5,hang@400:1:6"
STRIKES = (("kill", signal.SIGKILL, 0), ("kill", signal.SIGKILL, 1), ("stop", signal.SIGSTOP, 0), ("stop", signal.SIGSTOP, 1),
           ("hang", None, 0), ("hang", None, 1))
GOOD_LINES = ("ranks meet", "memory", "KV cache", "loaded", "workers lost", "recover", "replac", "restart", "error", "warn")


class Clock:
    def __init__(self, seconds):
        self.end = time.monotonic() + seconds

    def left(self):
        return self.end - time.monotonic()


def group_flags(args, group):
    if group == "one":
        return []
    return ["--tensor-parallel-size=2"] + (["--devices=0,1", f"--tensor-parallel-group={group}"] if args.device == "cuda" else [])


def worker_pids(daemon):
    """In the order of ranks: they start in it."""
    found = subprocess.run(["pgrep", "-P", str(daemon.process.pid), "-f", "worker"], capture_output=True, text=True)
    return sorted(int(pid) for pid in found.stdout.split())


def explain(daemon):
    """Where processes are that do not go on."""
    for pid in worker_pids(daemon):
        print(f"---- worker {pid}:", flush=True)
        command = ["cuda-gdb", "-q", "-batch", "-p", str(pid), "-ex", "info cuda kernels", "-ex", "thread apply all bt 14"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=25)
            print((done.stdout + done.stderr)[-6000:], flush=True)
        except (OSError, subprocess.TimeoutExpired) as error:
            print(error, flush=True)
    subprocess.run("nvidia-smi --query-gpu=index,utilization.gpu,memory.used,clocks.sm --format=csv", shell=True, check=False)


def machine():
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        rows = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip().splitlines()
    except (OSError, subprocess.SubprocessError):
        rows = []
    name, _, driver = rows[0].partition(", ") if rows else ("", "", "")
    return {"device": name, "gpus": len(rows), "driver": driver, "date": time.strftime("%Y-%m-%d"),
            "method": "random weights in bfloat16, prompts of 32 tokens, two waves of as many sequences as a batch; p50 of the time "
                      "between tokens is that of a decode step; floor: weights and cache read once, shared by the ranks"}


def lines_of(log):
    return [line for line in log.splitlines() if any(word in line for word in GOOD_LINES)][:60]


def prompt_logprobs(args, daemon):
    """Of 127 tokens: what the ranks compute, before anything rounds them to a choice."""
    ids = ",".join(str(i) for i in range(1000, 128000, 1000))
    command = [args.pagoda, "generate", "--address", daemon.address, "--unary", "--json", "--token-ids", ids, "--prompt-logprobs=1",
               "--temperature=0", "--max-tokens=16", "--ignore-eos", "--omit-text"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    reply = json.loads(done.stdout)
    return {"prompt": [entry["token"]["logprob"] for entry in reply["promptLogprobs"] if "logprob" in entry.get("token", {})],
            "tokens": reply["sequences"][0].get("tokenIds", [])}


def tpot(args, clock, name, group):
    batches = BATCHES.get(name, ALL_BATCHES)
    result = {"group": group, "batches": {}}
    with Daemon(args, shape(args, name), *group_flags(args, group)) as daemon:
        try:
            result["ready_s"] = daemon.wait_until_ready(min(100, clock.left()))
            result["logprobs"] = prompt_logprobs(args, daemon)
            load = ("--input-tokens=32", "--warmup=0", "--channels=4", "--threads=2", "--timeout=60")
            for batch in batches:
                daemon.bench("-n", str(batch), "-c", str(batch), "--output-tokens=24", *load, seconds=60)
            time.sleep(min(SETTLE_SECONDS, max(0, clock.left() - 20)))
            for batch in batches:
                if clock.left() < 6:
                    result.setdefault("left_out", []).append(batch)
                    continue
                num_tokens = 256 if batch == 1 else 128
                report = daemon.bench("-n", str(2 * batch), "-c", str(batch), f"--output-tokens={num_tokens}", *load, "--seed=2",
                                      seconds=max(5, clock.left()))
                num_ranks = 1 if group == "one" else 2
                result["batches"][str(batch)] = {**latency_row(report), "output_tokens_per_second": report["output_tokens_per_second"],
                                            "floor_ms": floor_ms(args, name, batch, 32 + num_tokens // 2) / num_ranks}
        except subprocess.TimeoutExpired:
            explain(daemon)
            raise
        finally:
            result["log"] = lines_of(daemon.stop())
    return result


class Stream:
    """A call whose tokens are read as they come."""

    def __init__(self, args, daemon, index):
        ids = ",".join(str((index * 7919 + i * 104729) % 128000) for i in range(64))
        command = [args.pagoda, "generate", "--address", daemon.address, "--token-ids", ids, "--print-token-ids", "--ignore-eos",
                   "--temperature=0", f"--max-tokens={STREAM_TOKENS}", "--timeout=200"]
        self.times = []
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.thread = threading.Thread(target=self.read)
        self.thread.start()

    def read(self):
        for line in self.process.stdout:
            if line.strip():
                self.times.append(time.monotonic())

    def pauses(self):
        return [(a, b - a) for a, b in zip(self.times, self.times[1:]) if b - a > PAUSE_SECONDS]

    def end(self):
        self.thread.join()
        return self.process.wait(), self.process.stderr.read()[-500:]


def await_tokens(streams, clock, num_tokens):
    """Until each stream has so many more."""
    wanted = [len(stream.times) + num_tokens for stream in streams]
    while clock.left() > 0:
        if all(len(stream.times) >= min(count, STREAM_TOKENS) for stream, count in zip(streams, wanted)):
            return
        time.sleep(0.02)
    raise subprocess.TimeoutExpired("streams", clock.left(), str([len(stream.times) for stream in streams]))


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, math.ceil(share * len(values)) - 1)] if values else None


def recovery(args, clock, name, group):
    os.environ["PAGODA_TEST_WORKER_FAULTS"] = HANGS
    result = {"streams": NUM_STREAMS, "tokens_each": STREAM_TOKENS, "strikes": []}
    streams = []
    with Daemon(args, shape(args, name), "--max-worker-restarts=1000", *group_flags(args, group)) as daemon:
        del os.environ["PAGODA_TEST_WORKER_FAULTS"]
        try:
            result["ready_s"] = daemon.wait_until_ready(min(60, clock.left()))
            streams = [Stream(args, daemon, i) for i in range(NUM_STREAMS)]
            await_tokens(streams, clock, 100)
            for kind, number, rank in STRIKES:
                before = worker_pids(daemon)
                struck = time.monotonic()
                if number is not None:
                    if len(before) != 2:
                        raise RuntimeError(f"{len(before)} workers, expected 2")
                    os.kill(before[rank], number)
                    print(f"{kind} of rank {rank}, worker {before[rank]}", flush=True)
                await_tokens(streams, clock, TOKENS_BETWEEN_STRIKES)
                # By itself a fault comes after a while: the last pauses are its.
                pauses = [pause for stream in streams for begin, pause in stream.pauses() if begin > struck - 0.05]
                result["strikes"].append({"kind": kind, "rank": rank, "pauses": len(pauses), "longest_s": max(pauses, default=None)})
                print(result["strikes"][-1], flush=True)
            ends = [stream.end() for stream in streams]
            pauses = [pause for stream in streams for _, pause in stream.pauses()]
            result["pause_s"] = {"count": len(pauses), "p50": percentile(pauses, 0.5), "p99": percentile(pauses, 0.99),
                                 "max": max(pauses, default=None)}
            result["lost_streams"] = sum(1 for code, _ in ends if code != 0)
            result["wrong_lengths"] = sum(1 for stream in streams if len(stream.times) != STREAM_TOKENS)
            for code, text in ends:
                if code != 0:
                    print("a stream ended with", code, text, flush=True)
        except subprocess.TimeoutExpired:
            explain(daemon)
            raise
        finally:
            for stream in streams:
                stream.process.kill()
            log = daemon.stop()
            result["log"] = lines_of(log)
            print(log[-6000:], flush=True)
    pauses = result["pause_s"]
    if result["lost_streams"] or result["wrong_lengths"] or pauses["count"] < len(STRIKES) * NUM_STREAMS:
        result["error"] = "streams were lost, or have other lengths, or there were fewer pauses than losses"
    return result


def compare(cases):
    rows = {}
    for case, result in cases.items():
        name, _, group = case.partition("/")
        one = cases.get(f"{name}/one", {})
        if group not in ("ipc", "nccl") or "batches" not in result:
            continue
        row = {}
        for batch, report in result["batches"].items():
            alone = one.get("batches", {}).get(batch)
            if alone:
                row[batch] = {of: alone[of]["p50"] / report[of]["p50"] for of in ("tpot_ms", "itl_ms")}
        rows[case] = {"speed_up_of_two": row}
        a, b = result.get("logprobs", {}).get("prompt"), one.get("logprobs", {}).get("prompt")
        if a and b:
            rows[case]["logprobs_differ_by"] = max(abs(x - y) for x, y in zip(a, b)) if len(a) == len(b) else "lengths"
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pagoda", required=True)
    parser.add_argument("--shapes", required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("--logs", default=tempfile.gettempdir())
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=100)
    parser.add_argument("--commit", default="")
    parser.add_argument("cases", nargs="+")
    args = parser.parse_args()
    clock = Clock(args.seconds)
    result = {"command": "tests/run_gpu.sh run, parts gpus/", "commit": args.commit, **machine(), "cases": {}}
    if os.path.exists(args.json):
        with open(args.json) as file:
            result = json.load(file)
    failed = False
    for case in args.cases:
        began = time.monotonic()
        parts = case.split("/")
        try:
            if case == "compare":
                found = compare(result["cases"])
            elif parts[0] == "recovery":
                found = recovery(args, clock, *parts[1:])
            else:
                found = tpot(args, clock, *parts)
        except (RuntimeError, OSError, subprocess.SubprocessError, KeyError, ValueError) as error:
            found = {"error": str(error)[-3000:]}
        failed = failed or "error" in found
        found["seconds"] = time.monotonic() - began
        result["cases"][case] = found
        print(f"case {case}:", json.dumps({key: value for key, value in found.items() if key not in ("log", "logprobs")}), flush=True)
        with open(args.json, "w") as file:
            json.dump(result, file, indent=1)
            file.write("\n")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
