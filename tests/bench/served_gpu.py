#!/usr/bin/env python3
"""Measures steps as they are served: starts `pagoda serve SHAPE --load-format=dummy --device=cuda` and loads it.

    served_gpu.py --pagoda=BINARY --shapes=FOLDER --json=FILE [--commit=HASH] [CASE...]

FOLDER holds a folder with a config.json for each shape. Cases (default: all), rows of the table of goals:
  d  TPOT of one sequence with a short context, of three shapes
  e  TPOT of 64 sequences with a context of 1k
  f  output tokens a second of 1,000 requests of 1,024 + 128 tokens, all at once
  g  time between a step's last kernel and the next one's first, at 256 sequences of three shapes, by the GPU's own clock
  r  two workers that share the 8B shape on one GPU, where they take turns: that it serves, not how fast
  i  start of the process to the first token: dummy weights; with --checkpoint=DIR safetensors in the page cache
"""

import argparse
import json
import os
import signal
import subprocess
import tempfile
import time

SHAPES = ("llama-3.1-8b", "llama-3.2-1b", "smollm2-135m")
READ_TB_PER_S = 4.56  # of an H200: what a kernel that only reads reaches


class Daemon:
    def __init__(self, args, model, *flags, dummy=True):
        self.folder = tempfile.TemporaryDirectory()
        self.address = f"unix:{self.folder.name}/grpc.sock"
        self.args = args
        self.command = [args.pagoda, "serve", model, f"--device={args.device}", f"--grpc-address={self.address}",
                        "--metrics-address=127.0.0.1:0", "--http-address=none"] + (["--load-format=dummy"] if dummy else []) + list(flags)
        self.log = open(os.path.join(args.logs, f"daemon-{time.time():.3f}.log"), "w+")
        self.started = time.monotonic()
        self.process = subprocess.Popen(self.command, stdout=self.log, stderr=self.log)

    def wait_until_ready(self, seconds=120):
        while time.monotonic() - self.started < seconds:
            if self.process.poll() is not None:
                break
            done = subprocess.run([self.args.pagoda, "health", "--address", self.address], capture_output=True)
            if done.returncode == 0:
                return time.monotonic() - self.started
            time.sleep(0.01)
        self.log.seek(0)
        raise RuntimeError("the daemon did not become ready:\n" + self.log.read())

    def first_token(self):
        subprocess.run([self.args.pagoda, "generate", "--address", self.address, "--token-ids", "1000,2000,3000",
                        "--max-tokens", "1", "--ignore-eos", "--print-token-ids"], check=True, capture_output=True)
        return time.monotonic() - self.started

    def settle(self, *flags):
        """A load as the one to be measured, then time for the worker to measure the kernels that it asked for."""
        self.bench(*flags, "--warmup=0")
        time.sleep(4)

    def bench(self, *flags, seconds=None):
        path = os.path.join(self.folder.name, "bench.json")
        seed = () if any(flag.startswith("--seed") for flag in flags) else ("--seed=1",)
        command = [self.args.pagoda, "bench", "--address", self.address, *seed, f"--json={path}", *flags]
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
        print(done.stdout, done.stderr, flush=True)
        if done.returncode != 0:
            self.log.flush()
            self.log.seek(0)
            print("daemon's log:\n" + self.log.read(), flush=True)
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}")
        with open(path) as file:
            return json.load(file)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.log.flush()
        self.log.seek(0)
        return self.log.read()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.stop()


def shape(args, name):
    return os.path.join(args.shapes, name)


def step_bytes(config, sequences, context):
    """What a decode step must read: every weight of the layers and the head once, and the cache."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads, head_dim = (config["num_attention_heads"], config["num_key_value_heads"],
                                 config.get("head_dim") or hidden // config["num_attention_heads"])
    layer = hidden * (heads + 2 * kv_heads) * head_dim + heads * head_dim * hidden + 3 * hidden * inner
    weights = config["num_hidden_layers"] * layer + config["vocab_size"] * hidden
    cache = 2 * config["num_hidden_layers"] * kv_heads * head_dim * sequences * context
    return 2 * (weights + cache)


def floor_ms(args, name, sequences, context):
    with open(os.path.join(shape(args, name), "config.json")) as file:
        return step_bytes(json.load(file), sequences, context) / (READ_TB_PER_S * 1e9)


def latency_row(report):
    return {key: {p: report[key][p] for p in ("mean", "p50", "p90", "p99")} for key in ("ttft_ms", "tpot_ms", "itl_ms")}


def case_d(args):
    rows = {}
    for name in SHAPES:
        with Daemon(args, shape(args, name)) as daemon:
            daemon.wait_until_ready()
            load = ("-n", "3", "-c", "1", "--input-tokens=32", "--output-tokens=256")
            daemon.settle(*load)
            report = daemon.bench(*load, "--warmup=1")
            rows[name] = {**latency_row(report), "floor_ms": floor_ms(args, name, 1, 160)}
    return rows


def case_e(args):
    with Daemon(args, shape(args, "llama-3.1-8b")) as daemon:
        daemon.wait_until_ready()
        load = ("-n", "64", "-c", "64", "--input-tokens=1024", "--output-tokens=256", "--channels=4", "--threads=2")
        daemon.settle(*load)
        report = daemon.bench(*load, "--warmup=0", "--seed=2")
    # The median time between tokens is that of a decode step; means include the steps that compute prompts.
    floor = floor_ms(args, "llama-3.1-8b", 64, 1152)
    return {"llama-3.1-8b": {**latency_row(report), "floor_ms": floor, "itl_p50_over_floor": report["itl_ms"]["p50"] / floor}}


def case_f(args):
    with Daemon(args, shape(args, "llama-3.1-8b")) as daemon:
        daemon.wait_until_ready()
        load = ("--input-tokens=1024", "--output-tokens=128", "--channels=8", "--threads=4")
        daemon.settle("-n", "256", "-c", "256", "--seed=2", *load)
        report = daemon.bench("-n", "1000", "-c", "1000", "--warmup=0", *load)
    return {"llama-3.1-8b": {"output_tokens_per_second": report["output_tokens_per_second"],
                             "cached_input_tokens": report["cached_input_tokens"], "seconds": report["seconds"],
                             **latency_row(report)}}


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def gaps_us(path):
    """From the last "end" of a step to the next "begin". Long ones are times without work."""
    gaps, end = [], None
    with open(path) as file:
        for line in file:
            mark, ns = line.split()
            if mark == "begin" and end is not None:
                gaps.append((int(ns) - end) / 1000)
                end = None
            elif mark == "end":
                end = int(ns)
    return gaps


def case_g(args):
    rows = {}
    for name in SHAPES:
        clock = os.path.join(args.logs, f"clock-{name}.txt")
        with Daemon(args, shape(args, name), f"--step-clock={clock}") as daemon:
            daemon.wait_until_ready()
            report = daemon.bench("-n", "256", "-c", "256", "--warmup=0", "--input-tokens=64", "--output-tokens=512",
                                  "--channels=8", "--threads=4")
            daemon.stop()
        gaps = gaps_us(clock)
        # The last steps: prompts and recordings are over, and every sequence is still running.
        steady = gaps[len(gaps) // 2:-8]
        rows[name] = {"steps": len(steady), "gap_us": {"p50": percentile(steady, 0.5), "p90": percentile(steady, 0.9),
                                                       "p99": percentile(steady, 0.99), "max": max(steady)},
                      **latency_row(report)}
    return rows


def case_r(args):
    with Daemon(args, shape(args, "llama-3.1-8b"), "--tensor-parallel-size=2", "--devices=0,0") as daemon:
        ready_s = daemon.wait_until_ready()
        report = daemon.bench("-n", "16", "-c", "8", "--input-tokens=128", "--output-tokens=32", "--warmup=1")
    return {"llama-3.1-8b": {**latency_row(report), "ready_s": ready_s}}


def case_i(args):
    rows = {}
    runs = [("dummy", shape(args, "llama-3.1-8b"), True)]
    if args.checkpoint:
        runs.append(("safetensors", args.checkpoint, False))
    for kind, model, dummy in runs:
        times = []
        for _ in range(3):
            with Daemon(args, model, dummy=dummy) as daemon:
                ready = daemon.wait_until_ready()
                times.append({"ready_s": ready, "first_token_s": daemon.first_token()})
                log = daemon.stop()
        rows[kind] = {"runs": times, "log": [line for line in log.splitlines() if "loaded" in line or "plan" in line]}
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pagoda", required=True)
    parser.add_argument("--shapes", required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("--logs", default=tempfile.gettempdir())
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--checkpoint")
    parser.add_argument("--commit", default="")
    parser.add_argument("cases", nargs="*", default=[])
    args = parser.parse_args()
    cases = {"d": case_d, "e": case_e, "f": case_f, "g": case_g, "i": case_i, "r": case_r}
    result = {"command": "served_gpu.py " + " ".join(args.cases), "commit": args.commit, "cases": {}}
    failed = False
    for name in args.cases or cases:
        began = time.monotonic()
        try:
            result["cases"][name] = cases[name](args)
        except (RuntimeError, OSError, subprocess.SubprocessError, KeyError, ValueError) as error:
            failed = True
            result["cases"][name] = {"error": str(error)[-2000:]}
        print(f"case {name} took {time.monotonic() - began:.1f} s:", json.dumps(result["cases"][name]), flush=True)
        with open(args.json, "w") as file:
            json.dump(result, file, indent=1)
            file.write("\n")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
