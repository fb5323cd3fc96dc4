#!/usr/bin/env python3
"""What others need for rows a, b, c and h of the limits, on the GPU of this machine.

cuda_peers.py [--json=FILE] [part of a name ...]: PyTorch, with its cuDNN, and FlashInfer where it can be imported (it
compiles its kernels at their first use). Shapes, values and clocks as in cuda_attention_bench and cuda_kernels_bench: 32
query and 8 KV heads of 128 in bfloat16, pages of 64 tokens in random order, 256 rows of 128,256 float32 logits. A time is
the mean of a chain in a CUDA graph, where the peer can be recorded, median of several; what a link reads is not what
the last one read.
"""

import json
import sys
import traceback

import torch
import torch.nn.functional as F

HEADS, KV_HEADS, DIM, PAGE = 32, 8, 128, 64
ROWS, VOCAB = 256, 128256
L2_BYTES = 256 << 20  # several times what the L2 holds

rows = []


def report(name, us, **more):
    rows.append({"name": name, "us": round(us, 3), **more})
    print(f"{name:58s} {us:10.2f} us  " + "  ".join(f"{k} {v}" for k, v in more.items()), flush=True)


def time_chain(calls, runs=9, recorded=True):
    """Microseconds of one of `calls`, which run one after another; not recorded, what a call costs the host may show."""

    def run():
        for call in calls:
            call()

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        run()
    torch.cuda.synchronize()
    if recorded:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
    times = []
    for i in range(runs + 2):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay() if recorded else run()
        end.record()
        torch.cuda.synchronize()
        if i >= 2:
            times.append(begin.elapsed_time(end) * 1e3 / len(calls))
    return sorted(times)[len(times) // 2]


class Decode:
    """Contexts, one query row each, their pages strewn over a pool."""

    def __init__(self, contexts):
        self.contexts = contexts
        self.pages = [(c + PAGE - 1) // PAGE for c in contexts]
        self.bytes = sum(contexts) * KV_HEADS * DIM * 2 * 2
        copies = max(1, min(16, L2_BYTES // self.bytes + 1)) if self.bytes < L2_BYTES else 2
        total = sum(self.pages)
        self.pools = [
            torch.randn(total, 2, KV_HEADS, PAGE, DIM, dtype=torch.bfloat16, device="cuda") for _ in range(copies)
        ]
        self.order = torch.randperm(total, device="cuda", dtype=torch.int32)
        self.q = torch.randn(len(contexts), HEADS, DIM, dtype=torch.bfloat16, device="cuda")

    def flashinfer(self, flashinfer, **options):
        workspace = torch.zeros(512 << 20, dtype=torch.uint8, device="cuda")
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "HND", use_tensor_cores=True, **options)
        indptr = torch.tensor([0] + self.pages, dtype=torch.int32).cumsum(0).to(torch.int32)
        last = torch.tensor([(c - 1) % PAGE + 1 for c in self.contexts], dtype=torch.int32)
        wrapper.plan(
            indptr.cuda(),
            self.order,
            last.cuda(),
            HEADS,
            KV_HEADS,
            DIM,
            PAGE,
            q_data_type=torch.bfloat16,
            kv_data_type=torch.bfloat16,
        )
        out = torch.empty_like(self.q)
        repeats = max(1, 8 // len(self.pools))
        return [lambda pool=pool: wrapper.run(self.q, pool, out=out) for pool in self.pools] * repeats


def decode(flashinfer):
    for name, contexts in [
        ("a/decode/64x4k", [4096] * 64),
        ("b/decode/1x8k", [8192]),
        ("b/decode/1x128k+31x4k", [131072] + [4096] * 31),
    ]:
        case = Decode(contexts)
        us = time_chain(case.flashinfer(flashinfer))
        report(f"{name}/flashinfer", us, tb_per_second=round(case.bytes / us * 1e-6, 3))


def prefill_inputs(length):
    shape = lambda heads: torch.randn(1, heads, length, DIM, dtype=torch.bfloat16, device="cuda")
    return shape(HEADS), shape(KV_HEADS), shape(KV_HEADS)


def tflops(length, us):
    return round(2 * length * length * HEADS * DIM / us * 1e-6, 1)


def prefill_torch():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    for length in (8192, 16384):
        q, k, v = prefill_inputs(length)
        for name, backend in [("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash2", SDPBackend.FLASH_ATTENTION)]:
            with sdpa_kernel(backend):
                us = time_chain([lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)] * 3)
            report(f"c/prefill/{length}/torch-{name}", us, tflops=tflops(length, us))


def prefill_flashinfer(flashinfer):
    for length in (8192, 16384):
        q, _, _ = prefill_inputs(length)
        q = q[0].transpose(0, 1).contiguous()
        pages = length // PAGE
        pool = torch.randn(pages, 2, KV_HEADS, PAGE, DIM, dtype=torch.bfloat16, device="cuda")
        workspace = torch.zeros(512 << 20, dtype=torch.uint8, device="cuda")
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "HND", backend="fa3")
        wrapper.plan(
            torch.tensor([0, length], dtype=torch.int32, device="cuda"),
            torch.tensor([0, pages], dtype=torch.int32, device="cuda"),
            torch.randperm(pages, device="cuda", dtype=torch.int32),
            torch.tensor([PAGE], dtype=torch.int32, device="cuda"),
            HEADS,
            KV_HEADS,
            DIM,
            PAGE,
            causal=True,
            q_data_type=torch.bfloat16,
            kv_data_type=torch.bfloat16,
        )
        us = time_chain([lambda: wrapper.run(q, pool)] * 3)
        report(f"c/prefill/{length}/flashinfer-fa3", us, tflops=tflops(length, us))


def make_logits(peaked):
    logits = torch.randn(ROWS, VOCAB, device="cuda") * 1.27
    if peaked:
        logits = 2 * logits + 10.0 * (torch.rand_like(logits) < 1 / 2003)
    return logits


def sample_torch():
    for kind in ("flat", "peaked"):
        logits = make_logits(kind == "peaked")

        def temperature():
            return torch.multinomial(torch.softmax(logits / 0.8, dim=-1), 1)

        def exponential():  # the usual way around multinomial
            p = torch.softmax(logits / 0.8, dim=-1)
            return (p / torch.empty_like(p).exponential_()).argmax(dim=-1)

        def top():
            values, ids = torch.topk(logits, 50, dim=-1)
            p = torch.softmax(values, dim=-1)
            p[p.cumsum(dim=-1) - p > 0.9] = 0
            return ids.gather(1, torch.multinomial(p, 1))

        report(f"h/temperature/{kind}/torch-multinomial", time_chain([temperature] * 4))
        report(f"h/temperature/{kind}/torch-exponential", time_chain([exponential] * 4))
        report(f"h/top_k50+top_p0.9/{kind}/torch-topk", time_chain([top] * 4))


def sample_flashinfer(flashinfer):
    # They make a generator of random numbers in each call, which a graph cannot record.
    for kind in ("flat", "peaked"):
        logits = make_logits(kind == "peaked")
        scaled = logits / 0.8
        report(
            f"h/temperature/{kind}/flashinfer-sampling_from_logits",
            time_chain([lambda: flashinfer.sampling.sampling_from_logits(scaled)] * 8, recorded=False),
        )
        report(
            f"h/top_k50+top_p0.9/{kind}/flashinfer",
            time_chain(
                [
                    lambda: flashinfer.sampling.top_k_top_p_sampling_from_logits(
                        logits, 50, 0.9, filter_apply_order="top_k_first"
                    )
                ]
                * 4,
                recorded=False,
            ),
        )
        p = torch.softmax(logits, dim=-1)
        report(
            f"h/top_k50+top_p0.9/{kind}/flashinfer, from probabilities, joint",
            time_chain(
                [lambda: flashinfer.sampling.top_k_top_p_sampling_from_probs(p, 50, 0.9, filter_apply_order="joint")]
                * 4,
                recorded=False,
            ),
        )


def main():
    path = next((a[len("--json=") :] for a in sys.argv[1:] if a.startswith("--json=")), None)
    wanted = [a for a in sys.argv[1:] if not a.startswith("--")]
    notes = {"torch": torch.__version__, "device": torch.cuda.get_device_name()}
    parts = [("c torch prefill", prefill_torch), ("h torch sample", sample_torch)]
    try:
        import flashinfer

        notes["flashinfer"] = flashinfer.__version__
        parts += [
            ("h flashinfer sample", lambda: sample_flashinfer(flashinfer)),
            ("a b flashinfer decode", lambda: decode(flashinfer)),
            ("c flashinfer prefill", lambda: prefill_flashinfer(flashinfer)),
        ]
    except Exception as error:  # Beside it the others still count.
        notes["flashinfer"] = f"not there: {error}"
        print(notes["flashinfer"])
    torch.manual_seed(1)
    for name, part in parts:
        if wanted and not any(w in name for w in wanted):
            continue
        try:
            part()
        except Exception as error:
            notes[name] = f"failed: {type(error).__name__}: {str(error)[:300]}"
            traceback.print_exc(limit=3)
        if path:
            with open(path, "w") as file:
                json.dump({**notes, "rows": rows}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
