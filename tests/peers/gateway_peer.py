#!/usr/bin/env python3
"""The gateway smg, unmodified, routing the OpenAI API to two running daemons over the engine protocol."""
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import grpc
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2 as pb, vllm_engine_pb2_grpc as rpc

import daemon_process as peers
from checks import check, report

PROMPT = "Once upon a time"


class Gateway:
    def __init__(self, log, *daemons):
        port, metrics_port = peers.free_port(), peers.free_port()
        self.num_workers = len(daemons)
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(
            ["smg", "launch", "--worker-urls", *(f"grpc://{daemon.address}" for daemon in daemons),
             "--policy", "cache_aware", "--host", "127.0.0.1", "--port", str(port),
             "--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)],
            stdout=log, stderr=log, env={**os.environ, "HF_HUB_OFFLINE": "1"})

    def __enter__(self):
        for _ in range(600):
            with contextlib.suppress(OSError, ValueError):
                workers = json.load(self.open("/workers"))["workers"]
                if len(workers) == self.num_workers and all(worker["status"] == "ready" for worker in workers):
                    self.complete(max_tokens=1)  # it loads the tokenizer after it says ready
                    return self
            time.sleep(0.1)
        raise SystemExit("the gateway finds no ready worker")

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def open(self, path, body=None, timeout=60):
        data = None if body is None else json.dumps(body).encode()
        return urllib.request.urlopen(urllib.request.Request(
            self.url + path, data, {"content-type": "application/json"}), timeout=timeout)

    def complete(self, path="/v1/completions", **body):
        body = {"model": "fable-7m", "temperature": 0, "max_tokens": 16, **body}
        if path == "/v1/completions":
            body.setdefault("prompt", PROMPT)
        return json.load(self.open(path, body))

    def stream(self, path="/v1/completions", **body):
        body = {"model": "fable-7m", "temperature": 0, "max_tokens": 16, "stream": True, **body}
        if path == "/v1/completions":
            body.setdefault("prompt", PROMPT)
        events = []
        for line in self.open(path, body):
            if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                events.append(json.loads(line[6:]))
        return events


def discovery(gateway):
    workers = json.load(gateway.open("/workers"))["workers"]
    check("the gateway finds two workers by itself", len(workers) == 2
          and all(worker["runtime_type"] == "vllm" and worker["connection_mode"] == "grpc" for worker in workers), workers)
    check("it knows the model", all(worker["models"][0]["context_length"] == 2048
                                    and worker["labels"]["served_model_name"] == "fable-7m" for worker in workers), workers)
    models = json.load(gateway.open("/v1/models"))
    check("it lists the model", [model["id"] for model in models["data"]] == ["fable-7m"], models)


def completions(gateway):
    golden = json.loads((peers.MODEL / "golden.json").read_text())
    for case in golden["cases"]:
        sure = 0
        while sure < 16 and case["greedy_margins"][sure] > 0.3:
            sure += 1
        if "<|" in case["text"] or sure < 16:
            continue
        reply = gateway.complete(prompt=case["text"], max_tokens=len(case["greedy_ids"]))
        check(f"{case['name']}: the reference's text", reply["choices"][0]["text"] == case["greedy_text"], reply)
    whole = gateway.complete()
    check("usage and finish reason", whole["choices"][0]["finish_reason"] == "length"
          and whole["usage"]["completion_tokens"] == 16, whole)
    events = gateway.stream()
    check("a stream adds up to the same text",
          "".join(event["choices"][0]["text"] for event in events if event["choices"]) == whole["choices"][0]["text"], events)
    several = gateway.complete(n=3, temperature=1.0, seed=5)
    check("n=3 gives three choices", sorted(choice["index"] for choice in several["choices"]) == [0, 1, 2], several)
    again = gateway.complete(n=3, temperature=1.0, seed=5)
    check("a seed gives the same again", [choice["text"] for choice in several["choices"]]
          == [choice["text"] for choice in again["choices"]], again)
    stopped = gateway.complete(max_tokens=300, stop=["."])
    check("a stop string", stopped["choices"][0]["finish_reason"] == "stop"
          and "." not in stopped["choices"][0]["text"], stopped)


def chats(gateway):
    body = {"path": "/v1/chat/completions", "messages": [{"role": "user", "content": PROMPT}]}
    reply = gateway.complete(**body)
    text = reply["choices"][0]["message"]["content"]
    check("a chat", text and reply["choices"][0]["finish_reason"] == "length", reply)
    events = gateway.stream(**body)
    check("a streamed chat is the same", "".join(
        event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"]) == text, events)
    scored = gateway.complete(**body, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    check("log-probabilities", len(scored) == 16 and all(
        entry["logprob"] <= 0 and len(entry["top_logprobs"]) == 2 for entry in scored), scored)
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
    reply = gateway.complete(**{**body, "max_tokens": 60}, response_format={
        "type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}})
    check("a JSON schema", isinstance(json.loads(reply["choices"][0]["message"]["content"])["ok"], bool), reply)


def errors(gateway):
    for name, body in (("a prompt beyond the context", {"prompt": "the king " * 3000}),
                       ("a constraint that is none", {"regex": "("})):
        try:
            gateway.complete(**body)
            check(f"{name} is refused", False)
        except urllib.error.HTTPError as error:
            message = error.read()
            check(f"{name} is 4xx and says what is wrong", 400 <= error.code < 500
                  and (b"regex" in message or b"tokens" in message), (error.code, message))


def routing(gateway):
    prompt = "The old king of the north had three daughters and a horse that could speak. " * 12
    gateway.complete(prompt=prompt)
    time.sleep(1)
    cached = [gateway.complete(prompt=prompt + f"Then {word}")["usage"]["prompt_tokens_details"]["cached_tokens"]
              for word in ("he", "she", "they", "it", "all", "one", "both", "none")]
    check("requests with a known prefix go where it is cached", all(count > 100 for count in cached), cached)


def leaving(gateway, stubs):
    reply = gateway.open("/v1/completions", {"model": "fable-7m", "prompt": PROMPT, "max_tokens": 1900, "stream": True,
                                             "ignore_eos": True})
    reply.readline()
    reply.close()
    deadline = time.time() + 15
    open_requests = 1
    while open_requests and time.time() < deadline:
        time.sleep(0.05)
        open_requests = sum(stub.GetServerInfo(pb.GetServerInfoRequest()).active_requests for stub in stubs)
    check("a client that leaves frees its request", open_requests == 0, open_requests)


def tokenizer_over_the_wire(binary, folder):
    """The gateway cannot see the model's directory, as on another machine: it has to ask for the tokenizer."""
    model = pathlib.Path(folder) / "model"
    shutil.copytree(peers.MODEL, model)
    with peers.Daemon(binary, "--served-model-name=fable-7m", model=model) as daemon, \
            grpc.insecure_channel(daemon.address) as channel:
        list(rpc.VllmEngineStub(channel).GetTokenizer(common_pb2.GetTokenizerRequest()))
        model.rename(pathlib.Path(folder) / "elsewhere")
        with open(pathlib.Path(folder) / "smg2.log", "w") as log, Gateway(log, daemon) as gateway:
            reply = gateway.complete()
            check("a gateway on another machine gets the tokenizer", reply["usage"]["completion_tokens"] == 16
                  and reply["choices"][0]["text"], reply)


def main():
    binary = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder, open(pathlib.Path(folder) / "smg.log", "w+") as log:
        with peers.Daemon(binary) as first, peers.Daemon(binary) as second:
            with Gateway(log, first, second) as gateway, grpc.insecure_channel(first.address) as first_channel, \
                    grpc.insecure_channel(second.address) as second_channel:
                stubs = [rpc.VllmEngineStub(first_channel), rpc.VllmEngineStub(second_channel)]
                discovery(gateway)
                completions(gateway)
                chats(gateway)
                errors(gateway)
                routing(gateway)
                leaving(gateway, stubs)
        log.seek(0)
        text = log.read()
        check("the gateway follows the KV events of both", text.count("KV event stream connected") == 2
              and "gap detected" not in text)
        tokenizer_over_the_wire(binary, folder)
    return report()


if __name__ == "__main__":
    sys.exit(main())
