#!/usr/bin/env python3
"""Unmodified grpcio clients against a running daemon: generated stubs, reflection, health, error details, keep-alive."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from pagoda.v1 import inference_pb2 as pb
from pagoda.v1 import inference_pb2_grpc as rpc

ROOT = pathlib.Path(__file__).resolve().parents[2]
passed = failed = 0


def check(name, condition, detail=""):
    global passed, failed
    passed, failed = passed + bool(condition), failed + (not condition)
    print(f"{'ok' if condition else 'FAILED'}: {name} {'' if condition else detail}")


def wait_serving(channel, seconds=10):
    stub = health_pb2_grpc.HealthStub(channel)
    for _ in range(20 * seconds):
        try:
            if stub.Check(health_pb2.HealthCheckRequest(), timeout=1).status == health_pb2.HealthCheckResponse.SERVING:
                return stub
        except grpc.RpcError:
            pass
        time.sleep(0.05)
    raise SystemExit("the daemon does not serve")


def golden_greedy(stub):
    golden = json.loads((ROOT / "deploy/models/fable-7m/golden.json").read_text())
    for case in golden["cases"]:
        request = dict(
            prompt=pb.Prompt(text=case["text"], parse_special_tokens=True),
            sampling=pb.SamplingParams(temperature=0),
            stopping=pb.StopConditions(max_tokens=16, ignore_eos=True),
        )
        unary = stub.Generate(pb.GenerateRequest(**request))
        events = list(stub.StreamGenerate(pb.StreamGenerateRequest(**request)))
        kinds = [event.WhichOneof("event") for event in events]
        check(f"{case['name']}: started first, finished last", kinds[0] == "started" and kinds[-1] == "finished", kinds)
        text = "".join(event.delta.text for event in events)
        ids = [i for event in events for i in event.delta.token_ids]
        check(f"{case['name']}: stream adds up to unary", text == unary.sequences[0].text
              and ids == list(unary.sequences[0].token_ids), (text, unary.sequences[0].text))
        sure = 0
        while sure < 16 and case["greedy_margins"][sure] > 0.3:
            sure += 1
        check(f"{case['name']}: greedy ids equal the reference", ids[:sure] == case["greedy_ids"][:sure], ids)
        check(f"{case['name']}: prompt tokens", unary.started.prompt_tokens == len(case["ids"]))


def errors(stub):
    try:
        stub.Generate(pb.GenerateRequest(prompt=pb.Prompt(text="x"), sampling=pb.SamplingParams(top_p=2)))
        check("top_p=2 is refused", False)
    except grpc.RpcError as error:
        details = dict(error.trailing_metadata()).get("grpc-status-details-bin", b"")
        check("top_p=2 is INVALID_ARGUMENT naming the field",
              error.code() == grpc.StatusCode.INVALID_ARGUMENT and "top_p" in error.details(), error.details())
        check("details hold BadRequest and ErrorInfo", b"BadRequest" in details and b"ErrorInfo" in details)
    try:
        stub.Generate(pb.GenerateRequest(model="no-such-model", prompt=pb.Prompt(text="x")))
        check("unknown model is refused", False)
    except grpc.RpcError as error:
        check("unknown model is NOT_FOUND", error.code() == grpc.StatusCode.NOT_FOUND, error.code())


def reflection(channel):
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    reply = next(stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")])))
    names = {service.name for service in reply.list_services_response.service}
    check("reflection lists our service and health",
          {"pagoda.v1.InferenceService", "grpc.health.v1.Health"} <= names, names)


def cancel(stub):
    call = stub.StreamGenerate(pb.StreamGenerateRequest(
        prompt=pb.Prompt(text="Once"), stopping=pb.StopConditions(ignore_eos=True)))
    next(call)
    call.cancel()
    check("a cancelled stream leaves the daemon serving",
          stub.Generate(pb.GenerateRequest(prompt=pb.Prompt(text="Once"),
                                           stopping=pb.StopConditions(max_tokens=1))).sequences[0].token_ids)


def concurrent(stub):
    request = pb.GenerateRequest(prompt=pb.Prompt(text="The king said"), sampling=pb.SamplingParams(seed=11),
                                 stopping=pb.StopConditions(max_tokens=24))
    alone = stub.Generate(request).sequences[0].text
    texts = [None] * 32

    def run(i):
        texts[i] = stub.Generate(request).sequences[0].text

    threads = [threading.Thread(target=run, args=(i,)) for i in range(32)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    check("32 seeded requests at once equal the one alone", set(texts) == {alone}, set(texts))


def main():
    binary = os.path.abspath(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        address = f"unix:{folder}/grpc.sock"
        daemon = subprocess.Popen([binary, "serve", str(ROOT / "deploy/models/fable-7m"), f"--grpc-address={address}",
                                   "--metrics-address=127.0.0.1:0", "--http-address=none"], stderr=subprocess.DEVNULL)
        try:
            # The strictest keep-alive that gateways use: a ping every 10 s, also while idle.
            channel = grpc.insecure_channel(address, options=[("grpc.keepalive_time_ms", 10000),
                                                              ("grpc.keepalive_permit_without_calls", 1)])
            wait_serving(channel)
            stub = rpc.InferenceServiceStub(channel)
            golden_greedy(stub)
            errors(stub)
            reflection(channel)
            cancel(stub)
            concurrent(stub)
        finally:
            daemon.terminate()
            check("SIGTERM ends the daemon with exit code 0", daemon.wait(60) == 0, daemon.returncode)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
