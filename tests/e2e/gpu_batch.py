#!/usr/bin/env python3
"""Requests in a batch of 64 and alone, against float32 on the CPU: `gpu_batch.py PAGODA ADDRESS REFERENCE_ADDRESS
VOCABULARY_SIZE dense|mixture`.

All are teacher-forced: what a request generated alone is what the others continue from, so that every position is compared
and a near tie that goes the other way does not hide what follows. The batch is compared while decoding, and where the
whole text is a prompt that is scored, beside 63 others each time. It must choose what float32 chooses, but for near ties
and where the request alone does not either. A near tie is a margin of 0.3, or of twice the rounding of the type in this
model: what 99.9 % of the margins of the requests alone are off by at most. In a mixture a rounding can choose another
expert, alone as in a batch: there the batch may have twice as many beyond near ties as the requests alone and three."""

import concurrent.futures
import json
import random
import subprocess
import sys

NUM_REQUESTS = 64
NUM_TOKENS = 48
MIN_NEAR_TIE = 0.3  # as kNearTie of the end-to-end tests


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
        """Tokens, and the log-probabilities of the likeliest at each place."""
        reply = self.call(prompt, f"--max-tokens={num_tokens}", "--logprobs=5")
        entries = reply["sequences"][0]["logprobs"]
        return ([entry["token"].get("tokenId", 0) for entry in entries],
                [{top.get("tokenId", 0): top["logprob"] for top in entry["top"]} for entry in entries])

    def score(self, text):
        """The likeliest token at each of the last NUM_TOKENS places, the next, and the margin between them."""
        reply = self.call(text, "--max-tokens=0", "--prompt-logprobs=2")
        tops = [entry["top"] for entry in reply["promptLogprobs"][-NUM_TOKENS:]]
        return [(top[0].get("tokenId", 0), top[1].get("tokenId", 0), top[0]["logprob"] - top[1]["logprob"]) for top in tops]


class Report:
    def __init__(self, near_tie):
        self.near_tie = near_tie
        self.compared = self.differing = 0
        self.wrong = {}

    def add(self, request, position, got, want, _, margin):
        self.compared += 1
        if got == want:
            return
        self.differing += 1
        if margin > self.near_tie:
            self.wrong[request, position] = margin

    def line(self, what):
        return f"{what}: {self.compared} positions, {self.differing} differ from float32, {len(self.wrong)} beyond near ties"


def near_tie_of(tops, reference):
    errors = []
    for own, expected in zip(tops, reference):
        for top, (first, second, margin) in zip(own, expected):
            # What is not among the likeliest is at least as far off as the last of them.
            least = min(top.values())
            errors.append(abs(top.get(first, least) - top.get(second, least) - margin))
    errors.sort()
    return max(MIN_NEAR_TIE, 2 * errors[len(errors) * 999 // 1000])


def decoding(client, pool, prompts, alone, reference, near_tie):
    """Decodes all at once; a request that parts from itself alone goes on from the tokens that it had alone."""
    report, places = Report(near_tie), dict.fromkeys(range(NUM_REQUESTS), 0)
    while places:
        # Those that are done run again, so that the batch stays full.
        starts = [places.get(i, 0) for i in range(NUM_REQUESTS)]
        texts = [prompts[i] + alone[i][:starts[i]] for i in range(NUM_REQUESTS)]
        results = list(pool.map(lambda i: client.generate(texts[i], NUM_TOKENS - starts[i])[0], range(NUM_REQUESTS)))
        for i, place in list(places.items()):
            del places[i]
            for t, got in enumerate(results[i], place):
                report.add(i, t, got, *reference[i][t])
                if got != alone[i][t]:
                    if t + 1 < NUM_TOKENS:
                        places[i] = t + 1
                    break
    return report


def compared(outputs, reference, near_tie):
    report = Report(near_tie)
    for i, tokens in enumerate(outputs):
        for t, got in enumerate(tokens):
            report.add(i, t, got, *reference[i][t])
    return report


def main(pagoda, address, reference_address, vocab_size, is_mixture):
    source = random.Random(1)
    prompts = [[source.randrange(10, vocab_size) for _ in range(source.randrange(1, 200))] for _ in range(NUM_REQUESTS)]
    client = Client(pagoda, address)
    alone, tops = zip(*[client.generate(prompt, NUM_TOKENS) for prompt in prompts])
    texts = [prompt + tokens for prompt, tokens in zip(prompts, alone)]
    with concurrent.futures.ThreadPoolExecutor(NUM_REQUESTS) as pool:
        reference = list(pool.map(Client(pagoda, reference_address).score, texts))
        near_tie = near_tie_of(tops, reference)
        scored = [[place[0] for place in places] for places in pool.map(client.score, texts)]
        batches = {"decoding": decoding(client, pool, prompts, alone, reference, near_tie),
                   "scoring": compared(scored, reference, near_tie)}
    one = compared(alone, reference, near_tie)
    print(f"near ties are margins of {near_tie:.3f}")
    print(one.line("alone"))
    ok = True
    for what, report in batches.items():
        print(report.line(f"batch, {what}"))
        if report.compared != NUM_REQUESTS * NUM_TOKENS:
            print("error: not every position was compared")
            ok = False
        own = {place: margin for place, margin in report.wrong.items() if place not in one.wrong}
        for (request, position), margin in own.items():
            print(f"request {request} has another token at {position} than alone, where the margin of float32 is {margin:.3f}")
        if len(own) > (2 * len(one.wrong) + 3 if is_mixture else 0):
            print(f"error: {what} in a batch differs from the requests alone")
            ok = False
    return 0 if ok else 1


if __name__ == "__main__":
    if len(sys.argv) != 6:
        raise SystemExit(__doc__)
    raise SystemExit(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5] == "mixture"))
