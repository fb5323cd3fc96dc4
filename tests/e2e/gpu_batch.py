#!/usr/bin/env python3
"""Requests in a batch of 64 against the same requests alone: `gpu_batch.py PAGODA ADDRESS VOCABULARY_SIZE`.

Both are teacher-forced: what a request generated alone is what it continues from, so that every position is compared and
a near tie that goes the other way (in bfloat16 it may) does not hide what follows. Wherever the margin of the request
alone exceeds 0.3, the batch must choose the same token: while decoding, and where the whole text is a prompt that is
scored, beside 63 others each time."""

import concurrent.futures
import json
import random
import subprocess
import sys

NUM_REQUESTS = 64
NUM_TOKENS = 48
MARGIN = 0.3


class Client:
    def __init__(self, pagoda, address):
        self.command = [pagoda, "generate", "--address", address, "--unary", "--json", "--temperature=0", "--ignore-eos",
                        "--omit-text"]

    def call(self, prompt, *flags):
        done = subprocess.run(self.command + ["--token-ids", ",".join(map(str, prompt)), *flags], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(done.stdout + done.stderr)
        return json.loads(done.stdout)

    def generate(self, prompt, num_tokens):
        """Tokens, and the margin of each to the next best."""
        reply = self.call(prompt, f"--max-tokens={num_tokens}", "--logprobs=2")
        entries = reply["sequences"][0]["logprobs"]
        return ([entry["token"].get("tokenId", 0) for entry in entries],
                [entry["top"][0]["logprob"] - entry["top"][1]["logprob"] for entry in entries])

    def argmaxes(self, text):
        """The likeliest token at every position of a prompt but the first."""
        reply = self.call(text, "--max-tokens=0", "--prompt-logprobs=1")
        return [entry["top"][0].get("tokenId", 0) for entry in reply["promptLogprobs"][1:]]


class Report:
    def __init__(self):
        self.compared = self.differing = self.wrong = 0

    def add(self, what, request, position, got, want, margin):
        self.compared += 1
        if got == want:
            return
        self.differing += 1
        if margin > MARGIN:
            self.wrong += 1
            print(f"error: {what} of request {request} has another token at {position}, where the margin was {margin:.3f}")

    def line(self, what):
        return (f"{what}: {self.compared} positions, {self.differing} near ties went the other way, {self.wrong} differ beyond "
                "near ties")


def decoding(client, pool, prompts, alone):
    """Decodes all at once; a request that parts from itself alone goes on from the tokens that it had alone."""
    report, places = Report(), dict.fromkeys(range(NUM_REQUESTS), 0)
    while places:
        # Those that are done run again, so that the batch stays full.
        starts = [places.get(i, 0) for i in range(NUM_REQUESTS)]
        texts = [prompts[i] + alone[i][0][:starts[i]] for i in range(NUM_REQUESTS)]
        results = list(pool.map(lambda i: client.generate(texts[i], NUM_TOKENS - starts[i])[0], range(NUM_REQUESTS)))
        for i, place in list(places.items()):
            tokens, margins = alone[i]
            del places[i]
            for t, got in enumerate(results[i], place):
                report.add("decoding", i, t, got, tokens[t], margins[t])
                if got != tokens[t]:
                    if t + 1 < NUM_TOKENS:
                        places[i] = t + 1
                    break
    return report


def scoring(client, pool, prompts, alone):
    report = Report()
    texts = [prompt + tokens for prompt, (tokens, _) in zip(prompts, alone)]
    for i, argmaxes in enumerate(pool.map(client.argmaxes, texts)):
        tokens, margins = alone[i]
        for t, got in enumerate(argmaxes[-NUM_TOKENS:]):
            report.add("scoring", i, t, got, tokens[t], margins[t])
    return report


def main(pagoda, address, vocab_size):
    source = random.Random(1)
    prompts = [[source.randrange(10, int(vocab_size)) for _ in range(source.randrange(1, 200))] for _ in range(NUM_REQUESTS)]
    client = Client(pagoda, address)
    alone = [client.generate(prompt, NUM_TOKENS) for prompt in prompts]
    with concurrent.futures.ThreadPoolExecutor(NUM_REQUESTS) as pool:
        reports = {"decoding": decoding(client, pool, prompts, alone), "scoring": scoring(client, pool, prompts, alone)}
    for what, report in reports.items():
        print(report.line(what))
    complete = all(report.compared == NUM_REQUESTS * NUM_TOKENS for report in reports.values())
    if not complete:
        print("error: not every position was compared")
    return 1 if not complete or any(report.wrong for report in reports.values()) else 0


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    raise SystemExit(main(*sys.argv[1:]))
