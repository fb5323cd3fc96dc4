#!/usr/bin/env python3
"""Random Unicode strings through Pagoda and the `sentencepiece` library, on models without a tokenizer.json.

usage: sentencepiece_peer.py PAGODA_BINARY [--strings=N] [--seed=S]
"""
import argparse
import io
import sys
import tempfile

import sentencepiece

import tokenizer_families
import tokenizer_peer

MODELS = {
    "bpe": dict(model_type="bpe", byte_fallback=True, normalization_rule_name="identity",
                remove_extra_whitespaces=False),
    "bpe_user_defined": dict(model_type="bpe", byte_fallback=True, user_defined_symbols=["<|user|>", "the  end"]),
    "bpe_unknown": dict(model_type="bpe", normalization_rule_name="nfkc", add_dummy_prefix=False),
    "unigram": dict(model_type="unigram"),
    "unigram_bytes": dict(model_type="unigram", byte_fallback=True, normalization_rule_name="nmt_nfkc_cf"),
}


def train(options):
    out = io.BytesIO()
    lines = (line.strip() for line in tokenizer_families.corpus() if line.strip())
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=lines, model_writer=out, vocab_size=2500,
                                             character_coverage=0.99, hard_vocab_limit=False, minloglevel=2, **options)
    return out.getvalue()


def check(pagoda, name, model, strings):
    library = sentencepiece.SentencePieceProcessor(model_proto=model)
    report = tokenizer_peer.Report(name)
    with tempfile.TemporaryDirectory() as directory:
        open(directory + "/tokenizer.model", "wb").write(model)
        expected = library.encode(strings)
        asked = [{"text": s, "add_special_tokens": False} for s in strings]
        for s, answer, ids in zip(strings, tokenizer_peer.run(pagoda, "tokenize", directory, asked), expected):
            report.expect("encode", s, answer.get("ids", answer), ids)
        # The library writes " \u2047 " for unknown text, Pagoda nothing.
        known = [ids for ids in expected if library.unk_id() not in ids]
        for answer, ids in zip(tokenizer_peer.run(pagoda, "detokenize", directory, [{"ids": ids} for ids in known]),
                               known):
            report.expect("decode", ids, answer.get("text", answer), library.decode(ids))
    differences = sum(report.counts.values())
    print(f"{name}: {len(strings)} strings, {differences} differences", flush=True)
    return differences


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("pagoda")
    parser.add_argument("--strings", type=int, default=100_000)
    parser.add_argument("--seed", default="2")
    options = parser.parse_known_args()[0]  # others are those of tokenizer_peer.py
    generator = tokenizer_peer.Strings(options.seed)
    # The library takes U+0000 for the end of nothing in particular; no text holds one.
    strings = [generator.next().replace("\0", "") for _ in range(options.strings)]
    differences = sum(check(options.pagoda, name, train(model), strings) for name, model in MODELS.items())
    print(f"sentencepiece: {differences} differences")
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
