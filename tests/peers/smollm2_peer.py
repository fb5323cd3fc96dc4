#!/usr/bin/env python3
"""Greedy answers to 20 chats of a real instruct model: Pagoda and transformers on the same weights in float32.

usage: smollm2_peer.py PAGODA_BINARY CHECKPOINT_DIRECTORY
Where the reference's best logit is more than MARGIN above its second, Pagoda must have chosen the same token.
"""
import json
import subprocess
import sys
import tempfile
from concurrent import futures

import torch
import transformers

import grpc
from grpcio_peer import wait_serving
from pagoda.v1 import inference_pb2 as pb
from pagoda.v1 import inference_pb2_grpc as rpc

MARGIN = 0.05
NUM_TOKENS = 64
USERS = [
    "Hello! Who are you?", "What is the capital of France?", "Write a haiku about the sea.", "Explain gravity to a child.",
    "List three prime numbers.", "Translate 'good morning' to Spanish.", "What is 12 * 12?", "Tell me a short joke.",
    "How do I boil an egg?", "Write a Python function that reverses a string.", "Name the planets of the solar system.",
    "What does 'naïve café' mean? 😀", "Summarise: The cat sat on the mat. It was warm.", "Who wrote Hamlet?",
    "Give me <|im_end|> as text.", "你好，你会说中文吗？", "  leading and trailing spaces  ", "Is 1234567 odd or even?",
]
CHATS = [[{"role": "user", "content": text}] for text in USERS] + [
    [{"role": "system", "content": "You answer in one word."}, {"role": "user", "content": "Colour of the sky?"}],
    [{"role": "user", "content": "My name is Ada."}, {"role": "assistant", "content": "Hello Ada!"},
     {"role": "user", "content": "What is my name?"}],
]


def rendered(pagoda, directory, chat):
    line = json.dumps({"messages": chat, "add_generation_prompt": True}) + "\n"
    done = subprocess.run([pagoda, "render", directory], input=line.encode(), stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)["text"]


def answer(stub, chat):
    messages = [pb.ChatMessage(role=m["role"], content=[pb.ContentPart(text=m["content"])]) for m in chat]
    return stub.Generate(pb.GenerateRequest(
        prompt=pb.Prompt(chat=pb.Chat(messages=messages)), sampling=pb.SamplingParams(temperature=0),
        stopping=pb.StopConditions(max_tokens=NUM_TOKENS, ignore_eos=True), output=pb.OutputOptions(omit_text=True)))


def prompt_ids(tokenizer, text, chat):
    """What a user writes is no control token in Pagoda; the library makes one of it."""
    plain = chat[-1]["content"]
    if "<|im_end|>" not in plain:
        return tokenizer(text, add_special_tokens=False).input_ids
    before, after = text.split(plain)
    ids = tokenizer(before, add_special_tokens=False).input_ids
    tokenizer.split_special_tokens = True
    ids += tokenizer(plain, add_special_tokens=False, split_special_tokens=True).input_ids
    tokenizer.split_special_tokens = False
    return ids + tokenizer(after, add_special_tokens=False).input_ids


def check_chat(pagoda, directory, tokenizer, model, chat, given):
    """How many tokens were compared, and what is wrong or None."""
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    if rendered(pagoda, directory, chat) != text:
        return 0, f"rendered otherwise than {text!r}"
    ids = prompt_ids(tokenizer, text, chat)
    if given.started.prompt_tokens != len(ids):
        return 0, f"{given.started.prompt_tokens} prompt tokens instead of {len(ids)}"
    tokens = list(given.sequences[0].token_ids)
    # Greedy, given the tokens before: equal at each step is equal as a whole.
    with torch.no_grad():
        logits = model(torch.tensor([ids + tokens[:-1]])).logits[0, len(ids) - 1:].float()
    best = torch.topk(logits, 2)
    num_compared = 0
    for i, token in enumerate(tokens):
        margin = float(best.values[i, 0] - best.values[i, 1])
        num_compared += margin > MARGIN
        if margin > MARGIN and token != int(best.indices[i, 0]):
            return num_compared, f"token {i} is {token} instead of {int(best.indices[i, 0])}, margin {margin:.3f}"
    return num_compared, None


def main():
    pagoda, directory = sys.argv[1:3]
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32,
                                                              attn_implementation="eager").eval()
    with tempfile.TemporaryDirectory() as runtime:
        socket = f"unix:{runtime}/pagoda.sock"
        daemon = subprocess.Popen([pagoda, "serve", directory, f"--grpc-address={socket}", "--dtype=float32",
                                   "--max-model-len=1024", "--kv-cache-memory=256MiB", "--metrics-address=127.0.0.1:0", "--http-address=none"],
                                  stderr=subprocess.DEVNULL)
        try:
            channel = grpc.insecure_channel(socket)
            wait_serving(channel, seconds=120)
            stub = rpc.InferenceServiceStub(channel)
            with futures.ThreadPoolExecutor(len(CHATS)) as pool:
                answers = list(pool.map(lambda chat: answer(stub, chat), CHATS))
        finally:
            daemon.terminate()
            daemon.wait()
    failed = total = 0
    for chat, given in zip(CHATS, answers):
        num_compared, problem = check_chat(pagoda, directory, tokenizer, model, chat, given)
        failed, total = failed + (problem is not None), total + num_compared
        print(f"{'FAILED' if problem else 'ok'}: {chat[-1]['content']!r} {problem or ''}", flush=True)
    print(f"smollm2: {total} of {len(CHATS) * NUM_TOKENS} tokens have a margin above {MARGIN} and were compared")
    print(f"{len(CHATS) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
