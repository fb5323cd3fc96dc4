#!/usr/bin/env python3
"""Schemas through the served path: what a model of random weights answers under each parses and validates.

usage: guided_peer.py PAGODA_BINARY [--seeds=N] [--jobs=J] [--daemons=D] [--device=cpu|cuda] [SCHEMA...]
J processes ask and validate (default: one a core); D daemons answer (default: one for two processes on cpu, else one).
Every schema of tests/data/guided/schemas.json with N seeds (default 1,000), checked with the jsonschema package
(pip install 'jsonschema[format]'); refused ones must be INVALID_ARGUMENT that names the keyword. Exits 1 where an output
does not hold, or a schema gives nothing complete.
"""
import argparse
import contextlib
import json
import multiprocessing
import os
import pathlib
import shutil
import sys
import tempfile
import time

import jsonschema

import grpc
from pagoda.v1 import inference_pb2 as pb
from pagoda.v1 import inference_pb2_grpc as rpc
from served import ROOT, Served

MODEL = ROOT / "deploy/models/fable-7m"
CORPUS = json.loads((ROOT / "tests/data/guided/schemas.json").read_text())
MAX_TOKENS = 500
AT_ONCE = 25  # seeds of one request
# What ends strings, lists and objects: with random weights they would go on for ever.
CLOSING = {'"': 6.0, "]": 4.0, "}": 4.0}
SHOWN = 5


def write_model(folder):
    """The tokenizer of the default model before a layer of random weights."""
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(MODEL / name, folder)
    config = json.loads((MODEL / "config.json").read_text())
    config.update(hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=1,
                  num_key_value_heads=1, head_dim=64)
    pathlib.Path(folder, "config.json").write_text(json.dumps(config))
    vocabulary = json.loads((MODEL / "tokenizer.json").read_text())["model"]["vocab"]
    return {vocabulary[text]: bias for text, bias in CLOSING.items()}


class Client:
    """One process's connection and validators."""

    def __init__(self, address, bias):
        self.stub = rpc.InferenceServiceStub(grpc.insecure_channel(address))
        self.bias = bias
        self.validators = {}

    def validator(self, name):
        if name not in self.validators:
            checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
            self.validators[name] = jsonschema.Draft202012Validator(CORPUS["accepted"][name], format_checker=checker)
        return self.validators[name]

    def generate(self, schema, first_seed, number):
        sampling = pb.SamplingParams(temperature=1.0, seed=first_seed, json_schema=json.dumps(schema),
                                     logit_bias=self.bias)
        return self.stub.Generate(pb.GenerateRequest(
            prompt=pb.Prompt(text="An answer: "), sampling=sampling,
            stopping=pb.StopConditions(max_tokens=MAX_TOKENS), output=pb.OutputOptions(n=number)), timeout=600)

    def why_invalid(self, name, text):
        try:
            error = next(self.validator(name).iter_errors(json.loads(text)), None)
        except ValueError as e:
            return f"does not parse: {e}"
        return error.message if error else None

    def check(self, name, first_seed, number):
        """How many outputs were complete, and what is wrong."""
        problems = []
        try:
            answer = self.generate(CORPUS["accepted"][name], first_seed, number)
        except grpc.RpcError as error:
            return 0, [f"{error.code()}: {error.details()}"]
        complete = [s.text for s in answer.sequences if s.finished.reason == pb.FINISH_REASON_STOP]
        for text in complete:
            why = self.why_invalid(name, text)
            if why:
                problems.append(f"{text!r}: {why}")
        return len(complete), problems

    def check_refused(self, keyword, schema):
        try:
            self.generate(schema, 1, 1)
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.INVALID_ARGUMENT and keyword in error.details():
                return None
            return f"{error.code()}: {error.details()}"
        return "was taken"


client = None


def connect(addresses, bias):
    """Of one process: to the daemon whose turn it is."""
    global client
    client = Client(addresses.get(), bias)


def task(arguments):
    name, first_seed, number = arguments
    return (name, number) + client.check(name, first_seed, number)


def compare(options, addresses, bias):
    names = options.names or list(CORPUS["accepted"])
    work = [(name, 1 + first, min(AT_ONCE, options.seeds - first))
            for name in names for first in range(0, options.seeds, AT_ONCE)]
    complete, drawn, bad = dict.fromkeys(names, 0), dict.fromkeys(names, 0), 0
    # A process that has used gRPC must not be forked.
    context = multiprocessing.get_context("spawn")
    turns = context.SimpleQueue()
    for i in range(options.jobs):
        turns.put(addresses[i % len(addresses)])
    with context.Pool(options.jobs, connect, (turns, bias)) as pool:
        for name, number, num_complete, problems in pool.imap_unordered(task, work):
            drawn[name] += number
            complete[name] += num_complete
            for problem in problems:
                bad += 1
                if bad <= SHOWN:
                    print(f"{name}: {problem}", flush=True)
    for name in names:
        if complete[name] == 0 and drawn[name] >= AT_ONCE:
            bad += 1
            print(f"{name}: none of {drawn[name]} outputs was complete")
    print(f"{len(names)} schemas, {sum(drawn.values())} outputs, {sum(complete.values())} of them complete, {bad} bad")
    refused = 0
    asker = Client(addresses[0], bias)
    for keyword, schema in () if options.names else CORPUS["refused"]:
        why = asker.check_refused(keyword, schema)
        refused += why is None
        if why:
            bad += 1
            print(f"refused {keyword}: {why}")
    print(f"{refused} schemas refused by their keyword")
    return bad


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("pagoda")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--daemons", type=int)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("names", nargs="*")
    options = parser.parse_intermixed_args()
    on_cpu = options.device == "cpu"
    num_daemons = options.daemons or (max(1, options.jobs // 2) if on_cpu else 1)
    flags = [f"--device={options.device}", "--load-format=dummy", "--max-num-seqs=256", "--kv-cache-memory=256MiB",
             "--max-num-batched-tokens=2048"]
    if on_cpu:
        flags.append("--threads=1")  # the model is nothing; masks and clients take the time
    start = time.monotonic()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        bias = write_model(folder)
        addresses = [stack.enter_context(Served(options.pagoda, folder, *flags)) for _ in range(num_daemons)]
        bad = compare(options, addresses, bias)
    print(f"guided: {bad} problems in {time.monotonic() - start:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
