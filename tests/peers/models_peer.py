#!/usr/bin/env python3
"""Random small configurations of every architecture, served by Pagoda in float32 and computed by transformers.

usage: models_peer.py PAGODA_BINARY [--rounds=N] [ARCHITECTURE...]
Of each model the log-probabilities of all ids at every position of three prompts (relative error 1e-4), through small
chunks, small blocks and the prefix cache, and the best id wherever its logit leads by more than 0.05.
"""
import pathlib
import random
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers

import grpc
from grpcio_peer import wait_serving
from pagoda.v1 import inference_pb2 as pb
from pagoda.v1 import inference_pb2_grpc as rpc

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "reference"))
import make_golden  # noqa: E402

VOCAB = 160
TOLERANCE = 1e-4
MARGIN = 0.05
CONTEXT = 256


class Draw:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def of(self, *options):
        return self.random.choice(options)

    def common(self):
        return dict(vocab_size=VOCAB, bos_token_id=1, eos_token_id=2, pad_token_id=None,
                    tie_word_embeddings=self.of(True, False))

    def rope(self, **more):
        kind = self.of("default", "linear", "llama3", "yarn")
        rope = dict(rope_type=kind, rope_theta=self.of(10000.0, 500000.0, 1e6), **more)
        if kind != "default":
            rope["factor"] = self.of(2.0, 4.0, 8.0)
        if kind in ("llama3", "yarn"):
            rope["original_max_position_embeddings"] = self.of(32, 64)
        if kind == "llama3":
            rope.update(low_freq_factor=self.of(1.0, 2.0), high_freq_factor=4.0)
        if kind == "yarn":
            rope.update(self.of({}, dict(beta_fast=16.0, beta_slow=2.0), dict(attention_factor=1.2)))
        return rope

    def llama(self):
        kv_heads = self.of(1, 2, 3)
        heads = kv_heads * self.of(1, 2, 4)
        head_dim = self.of(32, 64)
        return dict(self.common(), hidden_size=heads * head_dim, intermediate_size=self.of(96, 160),
                    num_hidden_layers=self.of(1, 2, 3), num_attention_heads=heads, num_key_value_heads=kv_heads,
                    max_position_embeddings=CONTEXT, rms_norm_eps=self.of(1e-5, 1e-6), rope_parameters=self.rope())

    def wide(self):
        """head_dim need not be hidden_size over heads."""
        fields = self.llama()
        fields["head_dim"] = self.of(32, 64)
        fields["hidden_size"] = self.of(96, 128)
        return fields

    def window(self):
        return self.of(None, 5, 16, 33)

    def layer_types(self, layers):
        return [self.of("sliding_attention", "full_attention") for _ in range(layers)]


def gemma3_rope(draw):
    return dict(full_attention=dict(rope_type="linear", factor=draw.of(2.0, 8.0), rope_theta=1e6),
                sliding_attention=dict(rope_type="default", rope_theta=1e4))


def qwen2(draw):
    fields = draw.llama()
    if draw.of(True, False):
        fields.update(use_sliding_window=True, sliding_window=draw.of(5, 16),
                      max_window_layers=draw.of(0, fields["num_hidden_layers"] // 2))
    return fields


def mixtral(draw):
    fields = draw.llama()
    return dict(fields, num_local_experts=draw.of(4, 8), num_experts_per_tok=draw.of(1, 2, 3))


def qwen3_moe(draw):
    fields = draw.wide()
    layers = fields["num_hidden_layers"]
    return dict(fields, moe_intermediate_size=draw.of(32, 64), num_experts=draw.of(4, 8), num_experts_per_tok=draw.of(1, 2, 3),
                norm_topk_prob=draw.of(True, False), decoder_sparse_step=draw.of(1, 2),
                mlp_only_layers=draw.of([], [layers - 1]))


def gemma2(draw):
    fields = draw.wide()
    fields.pop("rope_parameters")
    return dict(fields, tie_word_embeddings=True, query_pre_attn_scalar=draw.of(32, 64, 100), sliding_window=draw.of(5, 16),
                attn_logit_softcapping=draw.of(20.0, 50.0), final_logit_softcapping=draw.of(None, 10.0, 30.0),
                layer_types=draw.layer_types(fields["num_hidden_layers"]))


def gemma3(draw):
    fields = draw.wide()
    return dict(fields, tie_word_embeddings=True, query_pre_attn_scalar=draw.of(32, 64, 100), sliding_window=draw.of(5, 16),
                layer_types=draw.layer_types(fields["num_hidden_layers"]), rope_parameters=gemma3_rope(draw))


def phi3(draw):
    fields = draw.llama()
    pairs = fields["hidden_size"] // fields["num_attention_heads"] // 2
    rope = dict(rope_type="default", rope_theta=10000.0)
    if draw.of(True, False):
        rope = dict(rope_type="longrope", rope_theta=10000.0, short_factor=[1.0 + 0.02 * i for i in range(pairs)],
                    long_factor=[1.5 + 0.1 * i for i in range(pairs)])
        fields["original_max_position_embeddings"] = 64
    return dict(fields, rope_parameters=rope, sliding_window=draw.window())


def granite(draw):
    return dict(draw.llama(), attention_bias=draw.of(True, False), mlp_bias=draw.of(True, False),
                embedding_multiplier=draw.of(1.0, 3.0), attention_multiplier=draw.of(0.03, 0.2),
                residual_multiplier=draw.of(0.4, 1.0), logits_scaling=draw.of(1.0, 2.0))


def starcoder2(draw):
    fields = draw.llama()
    fields.pop("rms_norm_eps")
    return dict(fields, norm_epsilon=1e-5, use_bias=draw.of(True, False), sliding_window=draw.window())


def gpt2(draw):
    heads = draw.of(1, 2, 3)
    return dict(draw.common(), n_embd=64 * heads, n_layer=draw.of(1, 2), n_head=heads, n_positions=CONTEXT,
                n_inner=draw.of(None, 96), activation_function=draw.of("gelu_new", "gelu"))


def bloom(draw):
    heads = draw.of(1, 2, 3, 5)
    return dict(draw.common(), hidden_size=64 * heads, n_layer=draw.of(1, 2), n_head=heads)


def mpt(draw):
    heads = draw.of(1, 2, 3, 6)
    return dict(draw.common(), d_model=64 * heads, n_layers=draw.of(1, 2), n_heads=heads, max_seq_len=CONTEXT)


ARCHITECTURES = {
    "Llama": lambda d: dict(d.of(d.llama, d.wide)(), attention_bias=d.of(True, False), mlp_bias=d.of(True, False)),
    "Mistral": lambda d: dict(d.of(d.llama, d.wide)(), sliding_window=d.window()),
    "Qwen2": qwen2, "Qwen3": lambda d: dict(d.wide(), attention_bias=d.of(True, False)), "Mixtral": mixtral,
    "Qwen3Moe": qwen3_moe, "Gemma2": gemma2, "Gemma3": gemma3, "Phi3": phi3,
    "Olmo2": lambda d: dict(d.llama(), attention_bias=d.of(True, False)), "Granite": granite, "Starcoder2": starcoder2,
    "GPT2": gpt2, "Bloom": bloom, "Mpt": mpt,
}


def make_model(family, fields, directory):
    config_class, model_class = make_golden.CLASSES.get(family, (family + "Config", family + "ForCausalLM"))
    config = getattr(transformers, config_class)(**fields)
    config._attn_implementation = "eager"
    model = getattr(transformers, model_class)(config).float().eval()
    make_golden.randomise(model)
    if (fields.get("rope_parameters") or {}).get("rope_type") == "longrope":
        make_golden.always_long(model)
    model.save_pretrained(directory)
    return model


def relative_error(found, expected):
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def distribution(entry):
    values = np.full(VOCAB, np.nan)
    for top in entry.top:
        values[top.token_id] = top.logprob
    return values


def check_prompt(stub, model, prompt):
    """The worst relative error, and what is wrong or None."""
    expected = torch.log_softmax(make_golden.logits_of(model, prompt).double(), -1).numpy()
    answer = stub.Generate(pb.GenerateRequest(
        prompt=pb.Prompt(token_ids=pb.TokenIds(ids=prompt)), sampling=pb.SamplingParams(temperature=0),
        stopping=pb.StopConditions(max_tokens=1, ignore_eos=True),
        output=pb.OutputOptions(logprobs=VOCAB, prompt_logprobs=VOCAB, omit_text=True)), timeout=300)
    entries = list(answer.prompt_logprobs[1:]) + [answer.sequences[0].logprobs[0]]
    worst = 0.0
    for position, (entry, row) in enumerate(zip(entries, expected)):
        found = distribution(entry)
        error = relative_error(found, row)
        worst = max(worst, error)
        best = np.sort(row)[-2:]
        if not error <= TOLERANCE:
            return worst, f"position {position} of {len(prompt)}: relative error {error:.2e}"
        if best[1] - best[0] > MARGIN and np.argmax(found) != np.argmax(row):
            return worst, f"position {position} of {len(prompt)}: best id {np.argmax(found)} instead of {np.argmax(row)}"
    # Once more, from the prefix cache where there is one.
    again = stub.Generate(pb.GenerateRequest(
        prompt=pb.Prompt(token_ids=pb.TokenIds(ids=prompt)), sampling=pb.SamplingParams(temperature=0),
        stopping=pb.StopConditions(max_tokens=1, ignore_eos=True),
        output=pb.OutputOptions(logprobs=VOCAB, omit_text=True)), timeout=300)
    error = relative_error(distribution(again.sequences[0].logprobs[0]), expected[-1])
    return max(worst, error), None if error <= TOLERANCE else f"from the cache: relative error {error:.2e}"


def check_model(pagoda, family, draw):
    fields = ARCHITECTURES[family](draw)
    flags = [f"--max-num-batched-tokens={draw.of(8, 17, 512)}", f"--block-size={draw.of(4, 16, 64)}"]
    with tempfile.TemporaryDirectory() as directory:
        model = make_model(family, fields, directory)
        daemon = subprocess.Popen([pagoda, "serve", directory, f"--grpc-address=unix:{directory}/sock", "--dtype=float32",
                                   f"--max-model-len={CONTEXT}", f"--max-logprobs={VOCAB}", "--max-num-seqs=4", *flags,
                                   "--kv-cache-memory=64MiB", "--metrics-address=127.0.0.1:0", "--http-address=none"], stderr=subprocess.PIPE)
        try:
            channel = grpc.insecure_channel(f"unix:{directory}/sock")
            wait_serving(channel, seconds=30)
            stub = rpc.InferenceServiceStub(channel)
            worst = 0.0
            for length in (1, 9, 80):
                prompt = [draw.random.randrange(VOCAB) for _ in range(length)]
                error, problem = check_prompt(stub, model, prompt)
                worst = max(worst, error)
                if problem:
                    return worst, f"{problem}; {flags} {fields}"
            return worst, None
        except SystemExit:
            daemon.terminate()
            return 0.0, f"{daemon.stderr.read().decode()[-400:]}; {fields}"
        finally:
            daemon.terminate()
            daemon.wait()


def main():
    pagoda, rounds, names = sys.argv[1], 4, []
    for argument in sys.argv[2:]:
        if argument.startswith("--rounds="):
            rounds = int(argument.split("=")[1])
        else:
            names.append(argument)
    passed = failed = 0
    for family in names or ARCHITECTURES:
        worst = 0.0
        for number in range(rounds):
            error, problem = check_model(pagoda, family, Draw(f"{family} {number}"))
            worst = max(worst, error)
            passed, failed = passed + (problem is None), failed + (problem is not None)
            if problem:
                print(f"FAILED: {family} {number}: {problem}")
        print(f"{family}: {rounds} models, worst relative error {worst:.1e}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
