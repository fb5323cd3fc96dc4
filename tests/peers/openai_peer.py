#!/usr/bin/env python3
"""The unmodified openai package against a running daemon: completions, chats, streams, usage, log-probabilities, tools,
structured output, errors and retries.

usage: openai_peer.py PAGODA_BINARY
"""
import asyncio
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

import openai

from checks import check, free_port, report

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = "fable-7m"
PROMPT = "Once upon a time"
KEY = "sk-test"


class Daemon:
    def __init__(self, binary, *flags):
        self.folder = tempfile.TemporaryDirectory()
        self.port = free_port()
        keys = pathlib.Path(self.folder.name, "keys")
        keys.write_text(KEY + "\n")
        self.process = subprocess.Popen(
            [binary, "serve", str(ROOT / "deploy/models/fable-7m"), f"--grpc-address=unix:{self.folder.name}/sock",
             "--metrics-address=127.0.0.1:0", f"--http-address=127.0.0.1:{self.port}", f"--api-key-file={keys}",
             "--kv-cache-memory=128MiB", *flags], stderr=subprocess.DEVNULL)

    def __enter__(self):
        for _ in range(600):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5).close()
                return self
            except (urllib.error.URLError, OSError):
                pass
            time.sleep(0.05)
        raise SystemExit("the daemon does not serve")

    def __exit__(self, *_):
        self.process.terminate()
        check("SIGTERM ends the daemon with exit code 0", self.process.wait(60) == 0, self.process.returncode)
        self.folder.cleanup()

    def client(self, **options):
        return openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", **{"api_key": KEY, "max_retries": 0, **options})


def greedy(**more):
    return {"model": MODEL, "prompt": PROMPT, "max_tokens": 24, "temperature": 0, **more}


def chat(**more):
    return {"model": MODEL, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 24, "temperature": 0, **more}


def models(client):
    listed = list(client.models.list())
    check("models.list", [model.id for model in listed] == [MODEL], listed)
    check("models.retrieve", client.models.retrieve(MODEL).id == MODEL)


def completions(client):
    whole = client.completions.create(**greedy())
    check("a completion", whole.choices[0].text and whole.object == "text_completion", whole)
    check("its usage", (whole.usage.prompt_tokens, whole.usage.completion_tokens, whole.usage.total_tokens)
          == (4, 24, 28), whole.usage)
    check("finish_reason length", whole.choices[0].finish_reason == "length")
    chunks = list(client.completions.create(**greedy(stream=True, stream_options={"include_usage": True})))
    check("its stream adds up", "".join(c.choices[0].text for c in chunks if c.choices) == whole.choices[0].text)
    check("the stream's usage comes last, alone", chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 24, chunks[-1])
    check("no usage unasked", all(c.usage is None for c in client.completions.create(**greedy(stream=True))))
    several = client.completions.create(**greedy(prompt=[PROMPT, "The king said"], n=2))
    check("prompts and n", [choice.index for choice in several.choices] == [0, 1, 2, 3]
          and several.choices[1].text == whole.choices[0].text, several)
    ids = client.completions.create(**greedy(prompt=[3777, 663, 259, 562]))
    check("token ids", ids.choices[0].text == whole.choices[0].text)
    scored = client.completions.create(**greedy(echo=True, logprobs=3, max_tokens=2)).choices[0]
    check("echo with logprobs", scored.text.startswith(PROMPT) and len(scored.logprobs.tokens) == 6
          and scored.logprobs.token_logprobs[0] is None and len(scored.logprobs.top_logprobs[-1]) >= 3, scored)
    check("text_offset", all(scored.text[o:o + len(t)] == t for o, t in
                             zip(scored.logprobs.text_offset, scored.logprobs.tokens)), scored.logprobs)
    stop = whole.choices[0].text[10:15]
    stopped = client.completions.create(**greedy(stop=[stop])).choices[0]
    check("stop", stopped.finish_reason == "stop" and stop not in stopped.text
          and whole.choices[0].text.startswith(stopped.text), stopped)
    extra = client.completions.create(**greedy(extra_body={"top_k": 1, "min_tokens": 3, "ignore_eos": True}))
    check("extra_body", extra.choices[0].text == whole.choices[0].text)
    seeded = [client.completions.create(**greedy(temperature=1, seed=5)).choices[0].text for _ in range(2)]
    check("seed", seeded[0] == seeded[1], seeded)


def chats(client):
    whole = client.chat.completions.create(**chat())
    check("a chat", whole.choices[0].message.role == "assistant" and whole.choices[0].message.content, whole)
    check("reasoning tokens", whole.usage.completion_tokens_details.reasoning_tokens == 0
          and whole.usage.prompt_tokens_details.cached_tokens is not None, whole.usage)
    chunks = list(client.chat.completions.create(**chat(stream=True, stream_options={"include_usage": True})))
    check("the role comes first", chunks[0].choices[0].delta.role == "assistant", chunks[0])
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    check("its stream adds up", text == whole.choices[0].message.content, text)
    reasons = [c.choices[0].finish_reason for c in chunks if c.choices]
    check("one finish_reason, at the end", reasons[-1] == "length" and set(reasons[:-1]) == {None}, reasons)
    check("one id", len({c.id for c in chunks}) == 1)
    check("usage", chunks[-1].usage.completion_tokens == 24)
    # Its accumulation fails where an answer is cut short.
    stop = text[10:15]
    with client.chat.completions.stream(**chat(stop=[stop], stream_options={"include_usage": True})) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    check("the package's own accumulation", final.choices[0].message.content == text[:text.find(stop)], final)
    scored = client.chat.completions.create(**chat(logprobs=True, top_logprobs=2, max_tokens=5)).choices[0]
    check("logprobs", len(scored.logprobs.content) == 5
          and all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in scored.logprobs.content)
          and bytes(b for token in scored.logprobs.content for b in token.bytes).decode() == scored.message.content, scored)
    parts = client.chat.completions.create(**chat(messages=[
        {"role": "user", "content": [{"type": "text", "text": PROMPT}]}]))
    check("content parts", parts.choices[0].message.content == whole.choices[0].message.content)
    several = client.chat.completions.create(**chat(n=3, temperature=1, seed=3))
    check("n", len({choice.message.content for choice in several.choices}) > 1, several)
    check("max_completion_tokens", client.chat.completions.create(
        **chat(max_tokens=None, max_completion_tokens=3)).usage.completion_tokens == 3)


PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8},
                                           "age": {"type": "integer", "minimum": 0, "maximum": 99}},
          "required": ["name", "age"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "register", "description": "Registers a person.", "parameters": PERSON}}


def is_person(text):
    person = json.loads(text)
    return set(person) == {"name", "age"} and isinstance(person["name"], str) and 0 <= person["age"] <= 99


def forms(client):
    schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    reply = client.chat.completions.create(**chat(response_format=schema, max_tokens=200))
    check("json_schema", is_person(reply.choices[0].message.content), reply.choices[0])
    named = {"type": "function", "function": {"name": "register"}}
    for choice in (named, "required"):
        options = chat(tools=[TOOL], tool_choice=choice, max_tokens=400, temperature=1, seed=1)
        message = client.chat.completions.create(**options).choices[0]
        check(f"tool_choice {choice}: a call", message.finish_reason in ("tool_calls", "length")
              and message.message.tool_calls[0].function.name == "register"
              and message.message.tool_calls[0].id, message)
        first = message.message.tool_calls[0].function.arguments
        check(f"tool_choice {choice}: its arguments", is_person(first), first)
        names, arguments = [], {}
        for chunk in client.chat.completions.create(**options, stream=True):
            for call in chunk.choices[0].delta.tool_calls or []:
                if call.function.name:
                    names.append(call.function.name)
                arguments[call.index] = arguments.get(call.index, "") + (call.function.arguments or "")
        check(f"tool_choice {choice}: the same as a stream", arguments[0] == first
              and len(names) == len(message.message.tool_calls), (names, arguments))
    text = client.chat.completions.create(**chat(tools=[TOOL], tool_choice="none")).choices[0].message
    check("tool_choice none", text.tool_calls is None and text.content, text)
    history = chat()["messages"] + [
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "register", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "done"}]
    check("a call's result", client.chat.completions.create(**chat(messages=history, tools=[TOOL])).choices)


def expect(name, kind, call, **fields):
    try:
        call()
        check(name, False, "no error")
    except kind as error:
        wrong = {key: getattr(error, key) for key, value in fields.items() if getattr(error, key) != value}
        check(name, not wrong, (wrong, error))


def errors(daemon, client):
    expect("400 names the field", openai.BadRequestError, lambda: client.completions.create(**greedy(top_p=7)),
           param="top_p", type="invalid_request_error")
    expect("404 of a model", openai.NotFoundError, lambda: client.completions.create(**greedy(model="gpt-4")),
           code="model_not_found")
    expect("401", openai.AuthenticationError, lambda: daemon.client(api_key="sk-other").models.list(),
           code="invalid_api_key")
    expect("context length", openai.BadRequestError, lambda: client.completions.create(**greedy(prompt=[5] * 3000)),
           code="context_length_exceeded")
    expect("embeddings are not implemented, and not tried again", openai.InternalServerError,
           lambda: daemon.client(max_retries=5).embeddings.create(model=MODEL, input="a"), status_code=501)
    check("then all is well", client.completions.create(**greedy(max_tokens=1)).choices)


def cancel(client):
    stream = client.completions.create(**greedy(max_tokens=1000, stream=True, extra_body={"ignore_eos": True}))
    next(iter(stream))
    stream.close()
    check("a closed stream leaves the daemon serving", client.completions.create(**greedy(max_tokens=1)).choices)


async def many(daemon):
    client = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{daemon.port}/v1", api_key=KEY)

    async def one():
        text = ""
        async for chunk in await client.completions.create(**greedy(stream=True)):
            text += chunk.choices[0].text
        return text
    texts = await asyncio.gather(*(one() for _ in range(32)))
    check("32 streams at once are alike", len(set(texts)) == 1, set(texts))


def retries(binary):
    """A full queue answers 429 with a hint; the client comes again until it is served."""
    with Daemon(binary, "--device=sim", "--sim-base-us=10000", "--max-num-seqs=1", "--max-waiting-requests=1") as daemon:
        endless = greedy(max_tokens=1900, stream=True, extra_body={"ignore_eos": True})
        running = daemon.client().completions.create(**endless)
        next(iter(running))
        client = daemon.client()
        waiting = threading.Thread(
            target=lambda: daemon.client(max_retries=10).completions.create(**greedy(max_tokens=1)))
        waiting.start()
        time.sleep(1)  # so that it is there first
        for _ in range(200):
            try:
                client.completions.create(**greedy(max_tokens=1))
            except openai.RateLimitError as error:
                check("a full queue is 429 with Retry-After", float(error.response.headers["retry-after"]) >= 1,
                      error.response.headers)
                break
            time.sleep(0.01)
        else:
            check("a full queue is 429", False)
        threading.Timer(1, running.close).start()
        patient = daemon.client(max_retries=10).completions.create(**greedy(max_tokens=1))
        check("who comes again is served", patient.choices, patient)
        waiting.join(60)
        check("so is who waited", not waiting.is_alive())


def main():
    binary = os.path.abspath(sys.argv[1])
    print(f"openai {openai.__version__}")
    with Daemon(binary) as daemon:
        client = daemon.client()
        models(client)
        completions(client)
        chats(client)
        forms(client)
        errors(daemon, client)
        cancel(client)
        asyncio.run(many(daemon))
    retries(binary)
    return report()


if __name__ == "__main__":
    sys.exit(main())
