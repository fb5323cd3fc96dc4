#!/usr/bin/env python3
"""The shape of a model in llama.cpp, beside cpu_model_bench: decode at batch 1 and N, a prompt of 512 tokens.

Writes a GGUF file with random bfloat16 weights of the shape (the same sizes, other numbers), loads it with
llama-cpp-python and times llama_decode. Needs the packages llama-cpp-python, gguf and numpy from PyPI:

    python3 -m venv build/peer && build/peer/bin/pip install llama-cpp-python gguf numpy
    build/peer/bin/python tests/bench/cpu_llama_cpp_peer.py --bench build/release/tests/bench/cpu_model_bench

With --bench, that program runs before and after, and the better of its figures stands beside llama.cpp's.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time


# The KV cache's type, as Pagoda has it; the package does not export the name.
GGML_TYPE_BF16 = 30


def write_gguf(config, path):
    """Random weights of the shape; the vocabulary is a list of made-up words."""
    import gguf
    import numpy as np

    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    inner, vocab = config["intermediate_size"], config["vocab_size"]

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(float(config["rope_theta"]))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(vocab)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"<{i}>".encode() for i in range(vocab)])
    writer.add_token_scores([0.0] * vocab)
    writer.add_token_types([gguf.TokenType.NORMAL] * vocab)

    random = np.random.default_rng(0)

    def matrix(name, rows, cols):
        values = (random.standard_normal((rows, cols), dtype=np.float32) * 0.02).view(np.uint32)
        # The upper halves of the float32 are bfloat16 values.
        halves = (values >> 16).astype(np.uint16)
        writer.add_tensor(name, halves.view(np.uint8), raw_shape=(rows, 2 * cols),
                          raw_dtype=gguf.GGMLQuantizationType.BF16)

    def norm(name):
        writer.add_tensor(name, np.ones(hidden, dtype=np.float32))

    matrix("token_embd.weight", vocab, hidden)
    for i in range(layers):
        norm(f"blk.{i}.attn_norm.weight")
        matrix(f"blk.{i}.attn_q.weight", heads * head_dim, hidden)
        matrix(f"blk.{i}.attn_k.weight", kv_heads * head_dim, hidden)
        matrix(f"blk.{i}.attn_v.weight", kv_heads * head_dim, hidden)
        matrix(f"blk.{i}.attn_output.weight", hidden, heads * head_dim)
        norm(f"blk.{i}.ffn_norm.weight")
        matrix(f"blk.{i}.ffn_gate.weight", inner, hidden)
        matrix(f"blk.{i}.ffn_up.weight", inner, hidden)
        matrix(f"blk.{i}.ffn_down.weight", hidden, inner)
    norm("output_norm.weight")
    if not config.get("tie_word_embeddings"):
        matrix("output.weight", vocab, hidden)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Peer:
    """llama.cpp through its C functions: no Python between the start and the end of a step."""

    def __init__(self, path, args):
        import llama_cpp

        self.llama = llama_cpp
        # Kept: the library calls it as long as it lives.
        self.quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self.quiet, None)
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), params)
        if not self.model:
            sys.exit("llama.cpp could not load the model")
        context = llama_cpp.llama_context_default_params()
        context.n_ctx = (max(args.prompt, args.context) + 64) * args.batch
        context.n_batch = context.n_ubatch = max(args.prompt, args.context)
        context.n_seq_max = args.batch
        context.n_threads = context.n_threads_batch = args.threads
        context.type_k = context.type_v = GGML_TYPE_BF16
        context.no_perf = True
        self.context = llama_cpp.llama_init_from_model(self.model, context)
        if not self.context:
            sys.exit("llama.cpp could not make a context")
        self.vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.buffer = llama_cpp.llama_batch_init(max(args.prompt, args.context), 0, 1)

    def decode(self, rows):
        """rows: (token, position, sequence, wants logits). Seconds."""
        self.buffer.n_tokens = len(rows)
        for i, (token, position, sequence, logits) in enumerate(rows):
            self.buffer.token[i] = token % self.vocab
            self.buffer.pos[i] = position
            self.buffer.n_seq_id[i] = 1
            self.buffer.seq_id[i][0] = sequence
            self.buffer.logits[i] = logits
        start = time.perf_counter()
        if self.llama.llama_decode(self.context, self.buffer) != 0:
            sys.exit("llama_decode failed")
        self.llama.llama_synchronize(self.context)
        return time.perf_counter() - start

    def forget(self):
        self.llama.llama_memory_clear(self.llama.llama_get_memory(self.context), True)

    def prompt(self, size, sequence=0):
        return self.decode([(sequence * 31 + i * 17, i, sequence, i == size - 1) for i in range(size)])

    def decode_steps(self, batch, context, steps):
        self.forget()
        for sequence in range(batch):
            self.prompt(context, sequence)
        return min(
            self.decode([(s * 7 + i, context + i, s, True) for s in range(batch)]) for i in range(steps))


def run_peer(config, args):
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "model.gguf")
        write_gguf(config, path)
        peer = Peer(path, args)
        best = {"decode_one_s": float("inf"), "decode_batch_s": float("inf"), "prefill_s": float("inf")}
        for _ in range(args.passes):
            best["decode_one_s"] = min(best["decode_one_s"], peer.decode_steps(1, args.context, 4))
            best["decode_batch_s"] = min(best["decode_batch_s"], peer.decode_steps(args.batch, args.context, 4))
            peer.forget()
            best["prefill_s"] = min(best["prefill_s"], peer.prompt(args.prompt))
        print("llama.cpp", llama_features())
        return best


def llama_features():
    """What this build of llama.cpp uses of the processor: a build for an older one is no measure."""
    import llama_cpp

    return llama_cpp.llama_print_system_info().decode().strip()


def run_bench(args):
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "figures.json")
        subprocess.run([args.bench, f"--model={args.model}", f"--threads={args.threads}", f"--passes={args.passes}",
                        f"--context={args.context}", f"--prompt={args.prompt}", f"--batch={args.batch}",
                        f"--json={path}"], check=True, stdout=subprocess.DEVNULL)
        with open(path, encoding="utf-8") as file:
            return json.load(file)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--model", default="tests/data/shapes/smollm2-135m")
    parser.add_argument("--bench", help="path of cpu_model_bench, to run beside")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--passes", type=int, default=9)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--json", help="also write the figures there")
    args = parser.parse_args()
    with open(os.path.join(args.model, "config.json"), encoding="utf-8") as file:
        config = json.load(file)

    ours = [run_bench(args)] if args.bench else []
    peer = run_peer(config, args)
    if args.bench:
        ours.append(run_bench(args))
    report = {"llama_cpp": peer}
    for name in ("decode_one_s", "decode_batch_s", "prefill_s"):
        line = f"{name:16} llama.cpp {peer[name] * 1e3:9.3f} ms"
        if ours:
            best = min(run[name] for run in ours)
            report.setdefault("pagoda", {})[name] = best
            line += f"  pagoda {best * 1e3:9.3f} ms  ratio {peer[name] / best:.3f} (goal: at least 1)"
        print(line)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=2)


if __name__ == "__main__":
    main()
