#!/usr/bin/env python3
"""Random Unicode strings through Pagoda and the `sentencepiece` library, on models without a tokenizer.json.

usage: sentencepiece_peer.py PAGODA_BINARY [--strings=N] [--seed=S] [--jobs=J] [--families=FOLDER | --write=FOLDER]
The models are trained, or read from FOLDER, where --write put them.
"""
import argparse
import io
import multiprocessing
import os
import pathlib
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
    return sum(report.counts.values())


def task(arguments):
    """One chunk of strings for one model: its name, how many, and the differences."""
    pagoda, name, model, seed, number = arguments
    generator = tokenizer_peer.Strings(seed)
    # The library takes U+0000 for the end of nothing in particular; no text holds one.
    return name, number, check(pagoda, name, model, [generator.next().replace("\0", "") for _ in range(number)])


def read_or_train(name, options, folder):
    path = pathlib.Path(folder, f"sentencepiece_{name}.model") if folder else None
    return path.read_bytes() if path and path.exists() else train(options)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("pagoda")
    parser.add_argument("--strings", type=int, default=100_000)
    parser.add_argument("--seed", default="2")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--families")
    parser.add_argument("--write")
    options = parser.parse_known_args()[0]  # others are those of tokenizer_peer.py
    models = {name: read_or_train(name, how, options.families) for name, how in MODELS.items()}
    if options.write:
        for name, model in models.items():
            pathlib.Path(options.write, f"sentencepiece_{name}.model").write_bytes(model)
        return 0
    chunk = tokenizer_peer.CHUNK
    work = [(options.pagoda, name, models[name], f"{options.seed} {first}", min(chunk, options.strings - first))
            for name in models for first in range(0, options.strings, chunk)]
    strings, differences = dict.fromkeys(models, 0), dict.fromkeys(models, 0)
    with multiprocessing.Pool(options.jobs) as pool:
        for name, number, different in pool.imap_unordered(task, work):
            strings[name] += number
            differences[name] += different
            if strings[name] == options.strings:
                print(f"{name}: {strings[name]} strings, {differences[name]} differences", flush=True)
    print(f"sentencepiece: {len(models)} models, {sum(strings.values())} strings, {sum(differences.values())} differences")
    return 1 if sum(differences.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
