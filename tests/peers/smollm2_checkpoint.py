#!/usr/bin/env python3
"""Writes a checkpoint in the Hugging Face layout from a GGUF file of a Llama model with Q4_1, Q8_0 and F32 tensors.

usage: smollm2_checkpoint.py FILE.gguf DIRECTORY
"""
import json
import pathlib
import struct
import sys

import numpy as np
from safetensors.numpy import save_file

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
CONTROL_TOKEN = 3
# ggml's tensor types: name, values in a block, bytes of a block.
TYPES = {0: ("F32", 1, 4), 3: ("Q4_1", 32, 20), 8: ("Q8_0", 32, 34)}


class Reader:
    def __init__(self, data):
        self.data = data
        self.at = 0

    def scalar(self, code):
        value, = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def string(self):
        size = self.scalar("Q")
        self.at += size
        return bytes(self.data[self.at - size:self.at]).decode()

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            element = self.scalar("I")
            return [self.value(element) for _ in range(self.scalar("Q"))]
        return self.scalar(SCALARS[kind])


def dequantise(raw, name, shape):
    if name == "F32":
        return raw.view(np.float32).reshape(shape).copy()
    if name == "Q8_0":
        blocks = raw.reshape(-1, 34)
        scales = blocks[:, :2].copy().view(np.float16).astype(np.float32)
        return (blocks[:, 2:].view(np.int8).astype(np.float32) * scales).reshape(shape)
    # Q4_1: scale, minimum, then the low halves of 16 bytes and the high ones.
    blocks = raw.reshape(-1, 20)
    scales = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    minima = blocks[:, 2:4].copy().view(np.float16).astype(np.float32)
    quants = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1).astype(np.float32)
    return (quants * scales + minima).reshape(shape)


def read_gguf(path):
    data = np.memmap(path, dtype=np.uint8, mode="r")
    reader = Reader(data)
    if bytes(data[:4]) != b"GGUF":
        raise SystemExit(f"{path} is no GGUF file")
    reader.at = 4
    version, num_tensors, num_fields = reader.scalar("I"), reader.scalar("Q"), reader.scalar("Q")
    if version != 3:
        raise SystemExit(f"{path} is GGUF version {version}; expected 3")
    fields = {}
    for _ in range(num_fields):
        name = reader.string()
        fields[name] = reader.value(reader.scalar("I"))
    infos = []
    for _ in range(num_tensors):
        name = reader.string()
        shape = [reader.scalar("Q") for _ in range(reader.scalar("I"))][::-1]
        kind = reader.scalar("I")
        infos.append((name, shape, kind, reader.scalar("Q")))
    alignment = fields.get("general.alignment", 32)
    begin = -(-reader.at // alignment) * alignment
    tensors = {}
    for name, shape, kind, offset in infos:
        type_name, values, size = TYPES[kind]
        num_bytes = int(np.prod(shape)) // values * size
        raw = np.array(data[begin + offset:begin + offset + num_bytes])
        tensors[name] = dequantise(raw, type_name, shape)
    return fields, tensors


def rotary_order(weight, num_heads):
    """From GGUF's pairs of neighbours to pairs of halves."""
    rows, columns = weight.shape
    return weight.reshape(num_heads, rows // num_heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def to_hugging_face(fields, tensors):
    heads, kv_heads = fields["llama.attention.head_count"], fields["llama.attention.head_count_kv"]
    out = {"model.embed_tokens.weight": tensors["token_embd.weight"], "model.norm.weight": tensors["output_norm.weight"]}
    names = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
             "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
             "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    for layer in range(fields["llama.block_count"]):
        for theirs, name in names.items():
            weight = tensors[f"blk.{layer}.{theirs}.weight"]
            if theirs in ("attn_q", "attn_k"):
                weight = rotary_order(weight, heads if theirs == "attn_q" else kv_heads)
            out[f"model.layers.{layer}.{name}.weight"] = np.ascontiguousarray(weight)
    return out


def config(fields):
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "torch_dtype": "float32",
        "hidden_size": fields["llama.embedding_length"], "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"], "num_attention_heads": fields["llama.attention.head_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"], "vocab_size": fields["llama.vocab_size"],
        "max_position_embeddings": fields["llama.context_length"], "rope_theta": fields["llama.rope.freq_base"],
        "rms_norm_eps": float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.1e}"), "tie_word_embeddings": True,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"], "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"], "attention_bias": False,
    }


def tokenizer(fields):
    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    if fields["tokenizer.ggml.pre"] != "smollm":
        raise SystemExit("expected the pre-tokenizer \"smollm\"")
    control = [i for i, kind in enumerate(kinds) if kind == CONTROL_TOKEN]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": [{"id": i, "content": tokens[i], "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True} for i in control],
        "pre_tokenizer": {"type": "Sequence",
                          "pretokenizers": [{"type": "Digits", "individual_digits": True}, level]},
        "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": {token: i for i, token in enumerate(tokens)}, "merges": fields["tokenizer.ggml.merges"]},
    }


def main():
    fields, tensors = read_gguf(sys.argv[1])
    out = pathlib.Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    tokens = fields["tokenizer.ggml.tokens"]
    names = {name: tokens[fields[f"tokenizer.ggml.{key}_token_id"]]
             for name, key in (("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"),
                               ("pad_token", "padding"))}
    files = {
        "config.json": config(fields),
        "generation_config.json": {key: config(fields)[key] for key in ("bos_token_id", "eos_token_id",
                                                                        "pad_token_id")},
        "tokenizer.json": tokenizer(fields),
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast",
                                  "chat_template": fields["tokenizer.chat_template"],
                                  "clean_up_tokenization_spaces": False, **names},
    }
    for name, content in files.items():
        (out / name).write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
    save_file(to_hugging_face(fields, tensors), out / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main()
