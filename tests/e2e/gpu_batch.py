#!/usr/bin/env python3
"""A request in a batch of 64 against the same request alone: `gpu_batch.py PAGODA ADDRESS VOCABULARY_SIZE`.

Greedy tokens must be the same up to the first that had a margin of less than 0.3 to the next best (in bfloat16 a near tie
may go the other way, and then all that follows differs)."""

import concurrent.futures
import json
import random
import subprocess
import sys

NUM_REQUESTS = 64
NUM_TOKENS = 48
MARGIN = 0.3


def generate(pagoda, address, prompt):
    done = subprocess.run([pagoda, "generate", "--address", address, "--unary", "--json", "--temperature=0", "--ignore-eos",
                           f"--max-tokens={NUM_TOKENS}", "--logprobs=2", "--omit-text",
                           "--token-ids", ",".join(map(str, prompt))], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stdout + done.stderr)
    entries = json.loads(done.stdout)["sequences"][0]["logprobs"]
    tokens = [entry["token"].get("tokenId", 0) for entry in entries]
    margins = [entry["top"][0]["logprob"] - entry["top"][1]["logprob"] for entry in entries]
    return tokens, margins


def main(pagoda, address, vocab_size):
    source = random.Random(1)
    prompts = [[source.randrange(10, int(vocab_size)) for _ in range(source.randrange(1, 200))] for _ in range(NUM_REQUESTS)]
    alone = [generate(pagoda, address, prompt) for prompt in prompts]
    with concurrent.futures.ThreadPoolExecutor(NUM_REQUESTS) as pool:
        together = list(pool.map(lambda prompt: generate(pagoda, address, prompt), prompts))
    num_wrong = num_same = 0
    for i, ((expected, margins), (got, _)) in enumerate(zip(alone, together)):
        same = next((t for t in range(NUM_TOKENS) if got[t] != expected[t]), NUM_TOKENS)
        num_same += same
        if same < NUM_TOKENS and margins[same] > MARGIN:
            num_wrong += 1
            print(f"error: request {i} parts at token {same}, where the margin was {margins[same]:.3f}")
    print(f"{num_wrong} of {NUM_REQUESTS} requests differ beyond near ties; {num_same} of {NUM_REQUESTS * NUM_TOKENS} tokens "
          "came before the first near tie that went the other way")
    return 1 if num_wrong else 0


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    raise SystemExit(main(*sys.argv[1:]))
