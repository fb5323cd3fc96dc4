#!/usr/bin/env python3
"""The pace of running streams while a client sends constraints that are made to take all time and memory.

usage: bombs_peer.py PAGODA_BINARY [--rounds=N] [--seconds=S] [--streams=N] [--threads=N] [--device=cpu|cuda]
Windows of S seconds with and without bombs take turns, N of each. Every bomb must end within LIMIT_SECONDS, in
INVALID_ARGUMENT where it is not taken. Exits 1 where the streams' tokens a second differ by more than 1 %. The machine
needs cores that the worker leaves alone (--threads, default half of them).
"""
import argparse
import os
import statistics
import sys
import threading
import time

import grpc
from pagoda.v1 import inference_pb2 as pb
from pagoda.v1 import inference_pb2_grpc as rpc
from served import ROOT, Served

LIMIT_SECONDS = 3.0
GOAL = 0.01


def nested(opening, closing, depth, inside=""):
    return opening * depth + inside + closing * depth


def bombs():
    """As BombTest's of tests/engine/guided/constraint_test.cc, by field."""
    any_of = ",".join(f'{{"anyOf":[{{"required":["a{i}"]}},{{"required":["b{i}"]}}]}}' for i in range(40))
    references = ",".join(f'"d{i}":{{"anyOf":[{{"$ref":"#/$defs/d{i + 1}"}},{{"type":"null"}}]}}' for i in range(3000))
    properties = ",".join(f'"key{i}":{{}}' for i in range(5000))
    return [
        ("regex", nested("(", ")", 50_000, "a")), ("regex", "[" * 50_000), ("regex", "(a|" * 60 + ")*" * 60),
        ("regex", "(a|b)*a" + "(a|b)" * 60), ("regex", "a?" * 20_000 + "a" * 20_000),
        ("regex", "(" * 6 + "a{1000}" + "){1000}" * 6), ("regex", "[^a]" * 60_000), ("regex", "a" * 10_000_000),
        ("grammar", nested("(", ")", 50_000, "a")),
        ("grammar", "root ::= r0\n" + "".join(f'r{i} ::= r{i + 1} | "x"\n' for i in range(20_000))),
        ("grammar", "root ::= " + "(" * 50_000), ("grammar", 'root ::= ' + '("a"?){9}' * 20_000),
        ("json_schema", nested('{"items":', "}", 2000, "true")), ("json_schema", "[" * 100_000),
        ("json_schema", '{"a":' * 100_000), ("json_schema", '{"$defs":{' + references + '},"$ref":"#/$defs/d0"}'),
        ("json_schema", '{"allOf":[' + any_of + "]}"), ("json_schema", '{"$ref":"#"}'),
        ("json_schema", '{"type":"object","additionalProperties":true,"properties":{' + properties + "}}"),
        ("json_schema", '{"oneOf":[{"$ref":"#"},{"$ref":"#"}]}'), ("json_schema", ""),
        ("json_schema", '{"type":"string","minLength":18446744073709551615}'),
        ("json_schema", '{"type":"array","minItems":1e300}'),
        ("json_schema", '{"type":"string","pattern":"(((a{999}){999}){999}b?)*c"}'),
    ]


class Streams:
    """Clients that read tokens for ever."""

    def __init__(self, address, number):
        self.num_tokens = [0] * number
        self.is_over = False
        self.threads = [threading.Thread(target=self.read, args=(address, i), daemon=True) for i in range(number)]
        for thread in self.threads:
            thread.start()

    def read(self, address, index):
        stub = rpc.InferenceServiceStub(grpc.insecure_channel(address))
        while not self.is_over:
            request = pb.StreamGenerateRequest(
                prompt=pb.Prompt(text="Once upon a time"), sampling=pb.SamplingParams(temperature=1.0, seed=index),
                stopping=pb.StopConditions(max_tokens=1500, ignore_eos=True))
            for event in stub.StreamGenerate(request):
                self.num_tokens[index] += len(event.delta.token_ids) if event.HasField("delta") else 0
                if self.is_over:
                    return

    def pace(self, seconds):
        before, start = sum(self.num_tokens), time.monotonic()
        time.sleep(seconds)
        return (sum(self.num_tokens) - before) / (time.monotonic() - start)


class Bomber:
    """Sends one bomb after another while it is on."""

    def __init__(self, address):
        self.stub = rpc.InferenceServiceStub(grpc.insecure_channel(
            address, options=[("grpc.max_send_message_length", 64 << 20)]))
        self.is_on = threading.Event()
        self.idle = threading.Event()
        self.idle.set()
        self.num_sent, self.longest, self.problems = 0, 0.0, []
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        all_bombs = bombs()
        while True:
            self.is_on.wait()
            self.idle.clear()
            self.send(*all_bombs[self.num_sent % len(all_bombs)])
            if not self.is_on.is_set():
                self.idle.set()

    def send(self, field, text):
        start = time.monotonic()
        sampling = pb.SamplingParams(**{field: text})
        try:
            self.stub.Generate(pb.GenerateRequest(prompt=pb.Prompt(text="x"), sampling=sampling,
                                                  stopping=pb.StopConditions(max_tokens=1)), timeout=60)
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.INVALID_ARGUMENT:
                self.problems.append(f"{field} {text[:40]!r}: {error.code()} {error.details()[:200]}")
        seconds = time.monotonic() - start
        self.num_sent += 1
        self.longest = max(self.longest, seconds)
        if seconds > LIMIT_SECONDS:
            self.problems.append(f"{field} {text[:40]!r} took {seconds:.1f} s")


def measure(options, address):
    streams, bomber = Streams(address, options.streams), Bomber(address)
    streams.pace(2)  # all have begun
    quiet, loud = [], []
    for _ in range(options.rounds):
        quiet.append(streams.pace(options.seconds))
        bomber.is_on.set()
        loud.append(streams.pace(options.seconds))
        bomber.is_on.clear()
        bomber.idle.wait(10)
    streams.is_over = True
    change = 1 - statistics.median(loud) / statistics.median(quiet)
    print(f"{options.streams} streams, {bomber.num_sent} bombs, the longest {bomber.longest:.2f} s")
    print("tokens a second without bombs", " ".join(f"{x:.0f}" for x in quiet))
    print("tokens a second with bombs   ", " ".join(f"{x:.0f}" for x in loud))
    print(f"change of the medians {100 * change:.2f} %, goal below {100 * GOAL:.0f} %")
    for problem in bomber.problems[:5]:
        print(problem)
    return bool(bomber.problems) or change > GOAL


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("pagoda")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--threads", type=int, default=max(1, os.cpu_count() // 2))
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    with Served(options.pagoda, ROOT / "deploy/models/fable-7m", f"--threads={options.threads}",
                f"--device={options.device}") as address:
        return 1 if measure(options, address) else 0


if __name__ == "__main__":
    sys.exit(main())
