#!/usr/bin/env python3
"""The stubs that gateways are generated from (smg-grpc-proto) against every call of a running daemon's VllmEngine."""
import hashlib
import io
import json
import os
import sys
import threading
import time
import zipfile

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2 as pb, vllm_engine_pb2_grpc as rpc

import daemon_process as peers
from checks import check, report

SERVICE = "vllm.grpc.engine.VllmEngine"
GATEWAY_CHANNEL = [("grpc.keepalive_time_ms", 10000), ("grpc.keepalive_timeout_ms", 10000),
                   ("grpc.keepalive_permit_without_calls", 1), ("grpc.http2.max_pings_without_data", 0),
                   ("grpc.max_receive_message_length", -1)]


def request(ids, stream=True, request_id="", **params):
    params = {"temperature": 0.0, "max_tokens": 16, "skip_special_tokens": True, "ignore_eos": True, **params}
    return pb.GenerateRequest(request_id=request_id, stream=stream, tokenized=pb.TokenizedInput(input_ids=ids),
                              sampling_params=pb.SamplingParams(**params))


def fails(call, code, *words):
    try:
        list(call()) if hasattr(call, "__call__") else None
        return False
    except grpc.RpcError as error:
        return error.code() == code and all(word in error.details() for word in words)


def generation(stub):
    golden = json.loads((peers.MODEL / "golden.json").read_text())
    for case in golden["cases"]:
        replies = list(stub.Generate(request(case["ids"])))
        kinds = [reply.WhichOneof("response") for reply in replies]
        check(f"{case['name']}: chunks, then complete", kinds[-1] == "complete" and set(kinds[:-1]) == {"chunk"}, kinds)
        ids = [i for reply in replies for i in reply.chunk.token_ids]
        sure = 0
        while sure < 16 and case["greedy_margins"][sure] > 0.3:
            sure += 1
        check(f"{case['name']}: greedy ids equal the reference", ids[:sure] == case["greedy_ids"][:sure], ids)
        complete = replies[-1].complete
        check(f"{case['name']}: counts", complete.prompt_tokens == len(case["ids"]) and complete.completion_tokens == 16
              and sum(reply.chunk.completion_tokens for reply in replies) == 16 and not complete.output_ids
              and complete.finish_reason == "length", complete)
        whole = list(stub.Generate(request(case["ids"], stream=False)))
        check(f"{case['name']}: without stream one complete holds all",
              len(whole) == 1 and list(whole[0].complete.output_ids) == ids, whole)
    ids = golden["cases"][0]["ids"]
    replies = list(stub.Generate(request(ids, n=3, temperature=1.0, seed=3, logprobs=2, prompt_logprobs=1)))
    for index in range(3):
        own = [reply for reply in replies if index in (reply.chunk.index, reply.complete.index)
               and (reply.chunk if reply.HasField("chunk") else reply.complete).index == index]
        completes = [reply for reply in own if reply.HasField("complete")]
        check(f"n=3: sequence {index} completes once, last", len(completes) == 1 and own[-1] is completes[0])
        check(f"n=3: sequence {index} has a log-probability per token", all(
            len(reply.chunk.output_logprobs.token_logprobs) == len(reply.chunk.token_ids)
            and all(len(top.values) == 2 for top in reply.chunk.output_logprobs.top_logprobs) for reply in own))
        check(f"n=3: sequence {index} begins with the prompt's",
              list(own[0].chunk.input_logprobs.token_ids) == ids
              and not own[0].chunk.input_logprobs.token_logprobs[0].HasField("value"))
    stopped = list(stub.Generate(request(ids, max_tokens=400, stop=["."])))[-1].complete
    check("a stop string is matched", stopped.finish_reason == "stop" and stopped.matched_stop_str == ".", stopped)
    text = pb.GenerateRequest(text="Once upon a time", sampling_params=pb.SamplingParams(max_tokens=3))
    check("text is a prompt too", next(stub.Generate(text)).complete.completion_tokens == 3)
    chosen = request(ids, stream=False, max_tokens=40, ignore_eos=False)
    chosen.sampling_params.choice.choices.extend(["left", "right"])
    check("a constraint ends by itself", next(stub.Generate(chosen)).complete.finish_reason == "stop")


def aborting(stub):
    stub.Abort(pb.AbortRequest(request_ids=["nobody's"]))
    call = stub.Generate(request([5, 6, 7], request_id="long", max_tokens=1900))
    next(call)
    check("a live request id is taken", fails(
        lambda: stub.Generate(request([5], request_id="long")), grpc.StatusCode.ALREADY_EXISTS))
    stub.Abort(pb.AbortRequest(request_ids=["long", "long"]))
    rest = list(call)
    check("an aborted stream ends with finish_reason abort", rest[-1].complete.finish_reason == "abort", rest[-1])
    call = stub.Generate(request([5, 6, 7], request_id="gone", max_tokens=1900))
    next(call)
    call.cancel()
    stub.Abort(pb.AbortRequest(request_ids=["gone"]))
    deadline = time.time() + 10
    while stub.GetServerInfo(pb.GetServerInfoRequest()).active_requests and time.time() < deadline:
        time.sleep(0.01)
    check("nothing is left of cancelled and aborted requests",
          stub.GetServerInfo(pb.GetServerInfoRequest()).active_requests == 0)


def refusals(stub):
    bad = grpc.StatusCode.INVALID_ARGUMENT
    check("temperature=-1", fails(lambda: stub.Generate(request([5], temperature=-1.0)), bad, "temperature"))
    check("logprobs=-1", fails(lambda: stub.Generate(request([5], logprobs=-1)), bad, "sampling_params.logprobs"))
    check("id outside the vocabulary", fails(lambda: stub.Generate(request([5, 9999])), bad, "tokenized.input_ids[1]"))
    check("no input", fails(lambda: stub.Generate(pb.GenerateRequest()), bad, "input"))
    check("structural tags", fails(
        lambda: stub.Generate(request([5], structural_tag="{}")), bad, "sampling_params.structural_tag"))
    for field, value in (("mm_inputs", pb.MultimodalInputs()), ("media_refs", pb.MediaRefs()),
                         ("kv_transfer_params", pb.KvTransferParams(remote_port=1)),
                         ("kv_transfer_params_json", "{}"), ("data_parallel_rank", 1)):
        message = pb.GenerateRequest(tokenized=pb.TokenizedInput(input_ids=[5]), **{field: value})
        check(f"{field} is refused", fails(lambda: stub.Generate(message), bad, field))
    message = pb.GenerateRequest(tokenized=pb.TokenizedInput(input_ids=[5]), extra_mm_inputs=[pb.MultimodalInputs()])
    check("extra_mm_inputs is refused", fails(lambda: stub.Generate(message), bad, "extra_mm_inputs"))


def unimplemented(stub):
    for name, message in (("Embed", pb.EmbedRequest()), ("FlushCache", common_pb2.FlushCacheRequest()),
                          ("StartProfile", common_pb2.StartProfileRequest()),
                          ("StopProfile", common_pb2.StopProfileRequest())):
        try:
            getattr(stub, name)(message)
            check(f"{name} is UNIMPLEMENTED", False)
        except grpc.RpcError as error:
            check(f"{name} is UNIMPLEMENTED", error.code() == grpc.StatusCode.UNIMPLEMENTED, error.code())


def description(stub, channel):
    health = stub.HealthCheck(pb.HealthCheckRequest())
    check("HealthCheck", health.healthy and health.message == "ready", health)
    model = stub.GetModelInfo(pb.GetModelInfoRequest())
    config = json.loads((peers.MODEL / "config.json").read_text())
    check("GetModelInfo", model.is_generation and model.model_type == config["model_type"]
          and list(model.architectures) == config["architectures"] and model.vocab_size == config["vocab_size"]
          and model.max_context_length == config["max_position_embeddings"]
          and os.path.samefile(model.tokenizer_path, peers.MODEL), model)
    server = stub.GetServerInfo(pb.GetServerInfoRequest())
    check("GetServerInfo", server.uptime_seconds > 0 and server.data_parallel_size == 1 and server.max_num_seqs > 0,
          server)
    loads = stub.GetLoads(pb.GetLoadsRequest(include=["core"]))
    check("GetLoads", len(loads.loads) == 1 and loads.dp_rank_count == 1 and loads.timestamp.endswith("00:00")
          and loads.loads[0].max_total_num_tokens > 0 and loads.loads[0].max_running_requests > 0, loads)
    chunks = list(stub.GetTokenizer(common_pb2.GetTokenizerRequest()))
    data = b"".join(chunk.data for chunk in chunks)
    check("GetTokenizer: pieces of 64 KiB, a fingerprint on the last", all(
        len(chunk.data) == 65536 and not chunk.sha256 for chunk in chunks[:-1])
          and chunks[-1].sha256 == hashlib.sha256(data).hexdigest())
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        check("GetTokenizer: a sound zip of the model's files", archive.testzip() is None
              and all(archive.read(name) == (peers.MODEL / name).read_bytes() for name in archive.namelist())
              and {"tokenizer.json", "tokenizer_config.json", "config.json"} <= set(archive.namelist()),
              archive.namelist())
    reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
    reply = next(reflection.ServerReflectionInfo(iter([
        reflection_pb2.ServerReflectionRequest(list_services="")])))
    check("reflection lists the service",
          SERVICE in {service.name for service in reply.list_services_response.service})
    health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=SERVICE))
    check("grpc.health.v1 knows the service", health.status == health_pb2.HealthCheckResponse.SERVING)


def kv_events(stub):
    prompt = [300 + i * i % 1000 for i in range(100)]
    list(stub.Generate(request(prompt)))
    call = stub.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest(start_sequence_number=7))
    blocks, last = {}, 7

    def known(ids):
        parent, count = None, 0
        while True:
            following = [(h, b) for h, b in blocks.items() if b[0] == parent and b[1] == ids[count:count + len(b[1])]]
            if not following or not following[0][1][1]:
                return count
            parent, count = following[0][0], count + len(following[0][1][1])

    gapless = True
    later = [2000 + i * i % 1000 for i in range(64)]
    sent = False
    for batch in call:
        gapless &= batch.sequence_number == last + 1
        last = batch.sequence_number
        for event in batch.events:
            kind = event.WhichOneof("data")
            if kind == "cleared":
                blocks.clear()
            for block_hash in event.removed.block_hashes:
                blocks.pop(block_hash, None)
            parent = event.stored.parent_block_hash if event.stored.HasField("parent_block_hash") else None
            for block in event.stored.blocks:
                blocks[block.block_hash] = (parent, list(block.token_ids))
                parent = block.block_hash
        if known(prompt) >= 96 and not sent:
            sent = True
            list(stub.Generate(request(later)))
        if known(later) == 64:
            break
    call.cancel()
    check("KV events: numbered from where the subscriber stood", gapless)
    check("KV events: what was cached, then what is new", known(prompt) == 96 and known(later) == 64)
    cached = list(stub.Generate(request(later + [9])))[-1].complete.cached_tokens
    check("KV events: a request finds what they say", cached == 64, cached)


def concurrent(stub):
    def run(i, results):
        results[i] = [j for reply in stub.Generate(request([20 + i, 30, 40], max_tokens=24)) for j in
                      reply.chunk.token_ids]

    alone, together = {}, {}
    for i in range(24):
        run(i, alone)
    threads = [threading.Thread(target=run, args=(i, together)) for i in range(24)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    check("24 requests at once equal those alone", alone == together)


def pings(binary):
    with peers.Daemon(binary, "--device=sim", "--sim-base-us=1000", "--sim-per-token-us=45000") as daemon:
        with grpc.insecure_channel(daemon.address, options=GATEWAY_CHANNEL) as channel:
            stub = rpc.VllmEngineStub(channel)
            start = time.time()
            replies = list(stub.Generate(request(list(range(1, 1001)), max_tokens=2)))
            check("pings every 10 s over a prefill of 45 s", time.time() - start > 40
                  and replies[-1].complete.completion_tokens == 2, time.time() - start)


def main():
    binary = os.path.abspath(sys.argv[1])
    with peers.Daemon(binary) as daemon:
        with grpc.insecure_channel(daemon.address, options=GATEWAY_CHANNEL) as channel:
            stub = rpc.VllmEngineStub(channel)
            generation(stub)
            aborting(stub)
            refusals(stub)
            unimplemented(stub)
            description(stub, channel)
            kv_events(stub)
            concurrent(stub)
    if "--no-pings" not in sys.argv:
        pings(binary)
    return report()


if __name__ == "__main__":
    sys.exit(main())
