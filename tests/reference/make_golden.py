#!/usr/bin/env python3
"""Makes the tiny checkpoints of tests/data for architectures beyond Llama and Mistral, with the
logits that transformers computes for them in float32 from their bfloat16 weights.

    pip install torch transformers safetensors
    tests/reference/make_golden.py tests/data [NAME ...]

golden.json has the form that tests/data/README.md describes. The weights are random, so a run gives
other files than those in the tree; they need no new run unless an architecture is added."""

import json
import pathlib
import sys

import torch
import transformers
from safetensors.torch import save_file

VOCAB = 512
COMMON = dict(vocab_size=VOCAB, bos_token_id=1, eos_token_id=2, pad_token_id=None)
LLAMA = dict(COMMON, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2,
             num_key_value_heads=1, max_position_embeddings=512, rms_norm_eps=1e-5)
WIDE = dict(LLAMA, head_dim=64, num_attention_heads=4, num_key_value_heads=2)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=64)
# 24 pairs: three quarters of a head of 64.
LONG = dict(rope_type="longrope", rope_theta=10000.0, partial_rotary_factor=0.75,
            short_factor=[1.0 + 0.05 * i for i in range(24)], long_factor=[1.5 + 0.25 * i for i in range(24)])

MODELS = {
    "llama_rope_yarn": ("Llama", dict(WIDE, rope_parameters=YARN)),
    "qwen2_window": ("Qwen2", dict(LLAMA, hidden_size=128, num_hidden_layers=3, use_sliding_window=True,
                                   sliding_window=32, max_window_layers=1)),
    "qwen3_moe": ("Qwen3Moe", dict(WIDE, num_hidden_layers=3, moe_intermediate_size=32, num_experts=8,
                                   num_experts_per_tok=3, norm_topk_prob=True, decoder_sparse_step=1,
                                   mlp_only_layers=[1])),
    "olmo2": ("Olmo2", dict(LLAMA, hidden_size=128)),
    "granite": ("Granite", dict(LLAMA, hidden_size=128, embedding_multiplier=3.0, attention_multiplier=0.03,
                                residual_multiplier=0.4, logits_scaling=2.0)),
    "phi3_window": ("Phi3", dict(LLAMA, hidden_size=128, sliding_window=32)),
    "phi3_longrope": ("Phi3", dict(LLAMA, hidden_size=128, sliding_window=None,
                                   original_max_position_embeddings=64, rope_parameters=LONG)),
    "starcoder2": ("Starcoder2", dict(COMMON, hidden_size=128, intermediate_size=192, num_hidden_layers=2,
                                      num_attention_heads=2, num_key_value_heads=1, sliding_window=32,
                                      max_position_embeddings=512)),
    "gemma2": ("Gemma2", dict(WIDE, query_pre_attn_scalar=48, sliding_window=32, attn_logit_softcapping=20.0,
                              final_logit_softcapping=10.0)),
    "gemma3": ("Gemma3", dict(WIDE, num_hidden_layers=3, query_pre_attn_scalar=48, sliding_window=32,
                              layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                              rope_parameters={
                                  "full_attention": dict(rope_type="linear", factor=8.0, rope_theta=1e6),
                                  "sliding_attention": dict(rope_type="default", rope_theta=1e4)})),
    "gpt2": ("GPT2", dict(COMMON, n_embd=128, n_layer=2, n_head=2, n_positions=512)),
    "bloom": ("Bloom", dict(COMMON, hidden_size=192, n_layer=2, n_head=3)),
    "mpt": ("Mpt", dict(COMMON, d_model=128, n_layers=2, n_heads=2, max_seq_len=512)),
}
CLASSES = {"GPT2": ("GPT2Config", "GPT2LMHeadModel"), "Gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM")}


def randomise(model):
    """Every parameter matters: norms and biases are not 1 and 0."""
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() == 1:
            centre = 0.0 if name.endswith("bias") or "gemma" in model.config.model_type else 1.0
            values = centre + 0.15 * noise
        elif "embed" in name or "wte" in name or "wpe" in name:
            values = 0.6 * noise
        elif "lm_head" in name:
            values = 3.0 * noise / parameter.shape[-1] ** 0.5
        else:
            inputs = parameter.shape[0] if type(model).__name__.startswith("GPT2") else parameter.shape[-1]
            # What blocks add outweighs the embedding, or a tied head would only find the last token again.
            adds = any(part in name for part in ("o_proj", "down_proj", "c_proj", "dense", "out_proj", ".w2"))
            values = (4.0 if adds else 1.2) * noise / inputs ** 0.5
        parameter.data = values.to(torch.bfloat16).to(torch.float32)


def logits_of(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].float()


def golden_of(model, config):
    generator = torch.Generator().manual_seed(2)
    cases = []
    for length in (1, 7, 33, 150):
        prompt = torch.randint(3, VOCAB, (length,), generator=generator).tolist()
        logits = logits_of(model, prompt)
        top = torch.topk(logits, 3, dim=-1)
        cases.append(dict(prompt=prompt, last_logits=logits[-1].tolist(), top3_ids=top.indices.tolist(),
                          top3_logits=top.values.tolist(), logsumexp=torch.logsumexp(logits, -1).tolist()))
    ids, tokens, margins = list(cases[2]["prompt"]), [], []
    for _ in range(32):
        best = torch.topk(logits_of(model, ids)[-1], 2)
        tokens.append(best.indices[0].item())
        margins.append((best.values[0] - best.values[1]).item())
        ids.append(tokens[-1])
    return dict(transformers=transformers.__version__, cases=cases, greedy=dict(tokens=tokens, margins=margins))


def rounded(value):
    """Seven digits are what float32 holds."""
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, list):
        return [rounded(v) for v in value]
    return {k: rounded(v) for k, v in value.items()} if isinstance(value, dict) else value


def always_long(model):
    """One set of factors for a whole context: the long one, as the context is longer than the original."""
    rotary = model.model.rotary_emb
    rotary.original_inv_freq = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["longrope"](
        model.config, "cpu", seq_len=model.config.max_position_embeddings)[0]


def make(root, name):
    family, fields = MODELS[name]
    config_class, model_class = CLASSES.get(family, (family + "Config", family + "ForCausalLM"))
    config = getattr(transformers, config_class)(**fields)
    config._attn_implementation = "eager"
    model = getattr(transformers, model_class)(config).float().eval()
    randomise(model)
    if "longrope" in name:
        always_long(model)
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    golden = golden_of(model, config)
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "golden.json").write_text(json.dumps(rounded(golden), separators=(",", ":")))
    print(name, "margins", sum(m > 0.3 for m in golden["greedy"]["margins"]), "of 32 above 0.3")


def main():
    root = pathlib.Path(sys.argv[1])
    for name in sys.argv[2:] or MODELS:
        make(root, name)


if __name__ == "__main__":
    main()
