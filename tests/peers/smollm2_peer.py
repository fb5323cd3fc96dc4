#!/usr/bin/env python3
"""Greedy answers to 20 chats of a real instruct model: Pagoda and transformers on the same weights in float32.

usage: smollm2_peer.py PAGODA_BINARY CHECKPOINT_DIRECTORY
Where the reference's best logit is more than MARGIN above its second, Pagoda must choose the same token: free-running
up to the first nearer tie, and at every position of the reference's answer given as part of the prompt.
"""
import json
import subprocess
import sys
import tempfile

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


def reference(model, ids):
    """Greedy tokens with the margin of each."""
    with torch.no_grad():
        out = model.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                             do_sample=False, max_new_tokens=NUM_TOKENS, eos_token_id=[], return_dict_in_generate=True,
                             output_logits=True)
    margins = []
    for logits in out.logits:
        best = torch.topk(logits[0], 2).values
        margins.append(float(best[0] - best[1]))
    return out.sequences[0, len(ids):].tolist(), margins


def pagoda_ids(pagoda, directory, chat):
    """What the daemon makes of the chat, by hand: rendered; text of the user is no control token there."""
    line = json.dumps({"messages": chat, "add_generation_prompt": True}) + "\n"
    done = subprocess.run([pagoda, "render", directory], input=line.encode(), stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)["text"]


def greedy(**more):
    return dict(sampling=pb.SamplingParams(temperature=0), output=pb.OutputOptions(omit_text=True, **more.pop("output", {})),
                **more)


def check_chat(stub, pagoda, directory, tokenizer, model, chat):
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    if pagoda_ids(pagoda, directory, chat) != text:
        return f"rendered otherwise than {text!r}"
    ids = tokenizer(text, add_special_tokens=False).input_ids
    tokens, margins = reference(model, ids)
    messages = [pb.ChatMessage(role=m["role"], content=[pb.ContentPart(text=m["content"])]) for m in chat]
    answer = stub.Generate(pb.GenerateRequest(
        prompt=pb.Prompt(chat=pb.Chat(messages=messages)),
        **greedy(stopping=pb.StopConditions(max_tokens=NUM_TOKENS, ignore_eos=True))))
    # A user's text that reads like a control token is none here; the library makes one of it.
    if "<|im_end|>" not in chat[-1]["content"]:
        if answer.started.prompt_tokens != len(ids):
            return f"{answer.started.prompt_tokens} prompt tokens instead of {len(ids)}"
        for i, (found, expected, margin) in enumerate(zip(answer.sequences[0].token_ids, tokens, margins)):
            if found == expected:
                continue
            if margin > MARGIN:
                return f"token {i} is {found} instead of {expected}, margin {margin:.3f}"
            break
    forced = stub.Generate(pb.GenerateRequest(
        prompt=pb.Prompt(token_ids=pb.TokenIds(ids=ids + tokens)),
        **greedy(stopping=pb.StopConditions(max_tokens=0), output={"prompt_logprobs": 1})))
    for i, (expected, margin) in enumerate(zip(tokens, margins)):
        found = forced.prompt_logprobs[len(ids) + i].top[0].token_id
        if margin > MARGIN and found != expected:
            return f"teacher-forced token {i} is {found} instead of {expected}, margin {margin:.3f}"
    check_chat.num_compared += sum(margin > MARGIN for margin in margins)
    return None


def main():
    pagoda, directory = sys.argv[1:3]
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32,
                                                              attn_implementation="eager").eval()
    check_chat.num_compared = failed = 0
    with tempfile.TemporaryDirectory() as runtime:
        socket = f"unix:{runtime}/pagoda.sock"
        daemon = subprocess.Popen([pagoda, "serve", directory, f"--grpc-address={socket}", "--dtype=float32",
                                   "--max-model-len=1024", "--kv-cache-memory=256MiB", "--metrics-address=127.0.0.1:0"],
                                  stderr=subprocess.DEVNULL)
        try:
            channel = grpc.insecure_channel(socket)
            wait_serving(channel, seconds=120)
            stub = rpc.InferenceServiceStub(channel)
            for chat in CHATS:
                problem = check_chat(stub, pagoda, directory, tokenizer, model, chat)
                failed += problem is not None
                print(f"{'FAILED' if problem else 'ok'}: {chat[-1]['content']!r} {problem or ''}", flush=True)
        finally:
            daemon.terminate()
            daemon.wait()
    print(f"smollm2: {check_chat.num_compared} tokens of margin above {MARGIN} compared")
    print(f"{len(CHATS) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
