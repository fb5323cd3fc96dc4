#!/usr/bin/env python3
"""Prompt log-probabilities of a large checkpoint against transformers on the same GPU.

    gpu_reference.py make SHAPE FOLDER       random weights N(0, 0.02) for SHAPE/config.json, saved as safetensors in
                                             FOLDER, and reference.json: prompts and what transformers gives for them
    gpu_reference.py compare FOLDER PAGODA ADDRESS
                                             asks the daemon at ADDRESS, which serves FOLDER: every prompt must agree
                                             within 2e-2 (norm of the difference over norm of the reference)
"""

import json
import os
import subprocess
import sys

NUM_PROMPTS = 8
PROMPT_TOKENS = 512
TOLERANCE = 2e-2


def make(shape, folder):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(1)
    config = AutoConfig.from_pretrained(shape)
    config.initializer_range = 0.02
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    os.makedirs(folder, exist_ok=True)
    generator = torch.Generator().manual_seed(2)
    prompts = torch.randint(1000, config.vocab_size - 1000, (NUM_PROMPTS, PROMPT_TOKENS), generator=generator)
    logprobs = []
    with torch.no_grad():
        for prompt in prompts:
            logits = model(prompt[None].cuda()).logits[0].float()
            all_logprobs = torch.log_softmax(logits, dim=-1)
            logprobs.append(all_logprobs[:-1].gather(1, prompt[1:, None].cuda())[:, 0].tolist())
    with open(os.path.join(folder, "reference.json"), "w") as file:
        json.dump({"prompts": prompts.tolist(), "logprobs": logprobs}, file)
    model.save_pretrained(folder, max_shard_size="4GB")


def compare(folder, pagoda, address):
    with open(os.path.join(folder, "reference.json")) as file:
        reference = json.load(file)
    worst = 0.0
    for i, (prompt, expected) in enumerate(zip(reference["prompts"], reference["logprobs"])):
        done = subprocess.run([pagoda, "generate", "--address", address, "--unary", "--json", "--max-tokens=1",
                               "--prompt-logprobs=0", "--omit-text", "--temperature=0",
                               "--token-ids", ",".join(map(str, prompt))], capture_output=True, text=True)
        if done.returncode != 0:
            print(done.stdout, done.stderr)
            return 1
        entries = json.loads(done.stdout)["promptLogprobs"]
        got = [entry["token"].get("logprob", 0.0) for entry in entries][-len(expected):]
        difference = sum((a - b) ** 2 for a, b in zip(got, expected)) ** 0.5
        error = difference / sum(b * b for b in expected) ** 0.5
        largest = max(abs(a - b) for a, b in zip(got, expected))
        print(f"prompt {i}: relative error {error:.2e}, largest difference {largest:.3f} of {len(got)} positions")
        if len(got) != len(expected):
            print(f"error: {len(entries)} positions came for a prompt of {len(prompt)} tokens")
            return 1
        worst = max(worst, error)
    print(f"worst relative error {worst:.2e}; at most {TOLERANCE:.0e} is allowed")
    return 0 if worst <= TOLERANCE else 1


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] == "make":
        make(*sys.argv[2:])
    elif len(sys.argv) == 5 and sys.argv[1] == "compare":
        raise SystemExit(compare(*sys.argv[2:]))
    else:
        raise SystemExit(__doc__)
