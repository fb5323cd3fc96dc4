#!/usr/bin/env python3
"""Beam search of model directories, served by Pagoda in float32 and computed by transformers.

usage: beams_peer.py PAGODA_BINARY MODEL_DIR...
Of each model the beams of every prompt, width, length penalty and kind of stopping: the same tokens in the same order,
scores within 1e-3. Where two scores are so close that rounding decides, their beams may change places.
"""
import itertools
import pathlib
import random
import subprocess
import sys
import tempfile

import grpc
import torch
import transformers
from grpcio_peer import wait_serving
from pagoda.v1 import inference_pb2 as pb
from pagoda.v1 import inference_pb2_grpc as rpc

TOLERANCE = 1e-3
NEW_TOKENS = 20


def reference(model, prompt, width, penalty, early, eos):
    out = model.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long), do_sample=False,
        num_beams=width, num_return_sequences=width, length_penalty=penalty, early_stopping=early,
        max_new_tokens=NEW_TOKENS, eos_token_id=eos, pad_token_id=eos[0], repetition_penalty=1.0,
        return_dict_in_generate=True, output_scores=True)
    beams = []
    for tokens, score in zip(out.sequences.tolist(), out.sequences_scores.tolist()):
        tokens = tokens[len(prompt):]
        end = next((i + 1 for i, token in enumerate(tokens) if token in eos), len(tokens))
        beams.append((tokens[:end], score))
    return beams


def served(stub, prompt, width, penalty, early, eos):
    response = stub.Generate(pb.GenerateRequest(
        prompt=pb.Prompt(token_ids=pb.TokenIds(ids=prompt)),
        sampling=pb.SamplingParams(repetition_penalty=1.0, beam_search=pb.SamplingParams.BeamSearch(
            width=width, length_penalty=penalty, early_stopping=early)),
        stopping=pb.StopConditions(max_tokens=NEW_TOKENS, ignore_eos=True, stop_token_ids=eos),
        output=pb.OutputOptions(n=width, logprobs=0)))
    beams = []
    for sequence in response.sequences:
        tokens = list(sequence.token_ids)
        total = sum(entry.token.logprob for entry in sequence.logprobs)
        beams.append((tokens, total / len(tokens) ** penalty))
    return beams


def same(ours, theirs):
    if any(abs(a[1] - b[1]) > TOLERANCE for a, b in zip(ours, theirs)):
        return False
    for i, (tokens, score) in enumerate(ours):
        near = [b[0] for b in theirs if abs(b[1] - score) <= TOLERANCE]
        if tokens != theirs[i][0] and tokens not in near and abs(score - theirs[-1][1]) > TOLERANCE:
            return False
    return True


def check_model(pagoda, path):
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    vocab = model.config.vocab_size
    draw = random.Random(7)
    cases = wrong = ended = 0
    with tempfile.TemporaryDirectory() as directory:
        address = f"unix:{directory}/socket"
        daemon = subprocess.Popen([pagoda, "serve", str(path), "--dtype=float32", f"--grpc-address={address}",
                                   "--metrics-address=127.0.0.1:0", "--http-address=none", "--kv-cache-memory=64MiB", "--block-size=4"],
                                  stderr=subprocess.PIPE)
        try:
            channel = grpc.insecure_channel(address)
            wait_serving(channel, 60)
            stub = rpc.InferenceServiceStub(channel)
            for length, width, penalty, early in itertools.product((1, 6, 19), (2, 3, 5), (0.0, 1.0, 2.0), (False, True)):
                prompt = [draw.randrange(3, vocab) for _ in range(length)]
                eos = sorted({draw.randrange(vocab) for _ in range(3)})
                # Ids that beams meet.
                eos.append(reference(model, prompt, width, penalty, early, eos)[-1][0][-1])
                eos = sorted(set(eos))
                theirs = reference(model, prompt, width, penalty, early, eos)
                ours = served(stub, prompt, width, penalty, early, eos)
                cases += 1
                ended += sum(beam[0][-1] in eos for beam in theirs)
                if not same(ours, theirs):
                    wrong += 1
                    print(f"FAILED: {path} length {length} width {width} penalty {penalty} early {early}\n"
                          f"  ours   {ours}\n  theirs {theirs}")
        finally:
            daemon.terminate()
            daemon.wait()
    print(f"{'ok' if wrong == 0 else 'FAILED'}: {path.name}: {cases} searches, {ended} beams ended by an id")
    return wrong


def main():
    pagoda = sys.argv[1]
    with torch.no_grad():
        wrong = sum(check_model(pagoda, pathlib.Path(path)) for path in sys.argv[2:])
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
