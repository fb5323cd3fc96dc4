#!/usr/bin/env python3
"""Random Unicode strings through Pagoda and the `tokenizers` library: ids, decodings, streamed pieces.

usage: tokenizer_peer.py PAGODA_BINARY [--strings=N] [--seed=S] [--jobs=J] [--families=FOLDER | --write=FOLDER] [FAMILY...]
N strings a family (default 100,000), made from the seed (default 1) whatever the number of processes is.
--write only makes the families' tokenizers, FOLDER/FAMILY/tokenizer.json; --families reads them there, for a machine
that lacks what trains them. Exits 1 and prints the first differences of each family when there are any.
"""
import argparse
import json
import multiprocessing
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unicodedata

# Processes are many already. Read when the library is loaded.
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from tokenizers import Tokenizer  # noqa: E402

import tokenizer_families  # noqa: E402

SHOWN = 4
CHUNK = 5_000  # strings of one task
WORDS = ["the", "The", " licence", "don't", "I'LL", "you're", "work", "word", "right", "Both", " both ", "123",
         "1234567", "3.14", "\n", "\n\n\n", "\r\n", "\t", " ", "  ", "        ", "###", "...", "!?", "-->", "{}", "\u2581",
         "\u2581\u2581", "\u00a0", "\u3000", "\u200b", "\u200d", "\ufeff", "\ufffd", "\u00ad", "\u0130", "\u00df", "\ufb01", "\u00bd", "\u2460", "\u212b", "``", "''",
         "<|bos|>", "<|end|>", "<s>", "</s>", "<unk>", "<mask>", "[CLS]", "[SEP]", "[UNK]", "<0x41>", "<|", "|>",
         "你好", "世界", "こんにちは", "カ\u3099", "안녕", "\u1112\u1161\u11ab", "Привет", "مرحبا", "สวัสดี", "नमस्ते",
         "e\u0301", "a\u0323\u0302", "\u0301", "q\u0307\u0323", "😀", "👨\u200d👩\u200d👧", "🇫🇷", "🇫", "❤\ufe0f", "\U0001fae0",
         "\x00", "\x01", "\x7f", "\x85", "\u2028", "٣٤", "Ⅷ", "x²", "_a_b", "can't've", " 's", " do not", " n't", " ."]


def characters():
    """Characters that every version of Unicode in play has: those of Unicode 12 and before."""
    out = []
    for code in range(1, 0x30000):
        if 0xD800 <= code <= 0xDFFF or unicodedata.category(chr(code)) in ("Cn", "Co"):
            continue
        out.append(chr(code))
    return out


class Strings:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.all = characters()
        self.blocks = [[c for c in self.all if low <= ord(c) < high] for low, high in (
            (0x20, 0x7F), (0x80, 0x250), (0x300, 0x370), (0x370, 0x530), (0x590, 0x700), (0x900, 0xE00), (0xE00, 0xE80),
            (0x1100, 0x1200), (0x2000, 0x2070), (0x3040, 0x3100), (0x4E00, 0x9FFF), (0xAC00, 0xD7A4), (0xFB00, 0xFFF0),
            (0x1F300, 0x1F700))]

    def piece(self):
        kind = self.random.random()
        if kind < 0.5:
            return self.random.choice(WORDS)
        if kind < 0.6:
            return self.random.choice(self.all)
        block = self.random.choice(self.blocks)
        return "".join(self.random.choice(block) for _ in range(self.random.randint(1, 6)))

    def next(self):
        return "".join(self.piece() for _ in range(self.random.randint(0, 8)))


def run(pagoda, command, directory, questions):
    lines = "".join(json.dumps(q) + "\n" for q in questions)
    done = subprocess.run([pagoda, command, directory], input=lines.encode(), stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


class Report:
    def __init__(self, family):
        self.family = family
        self.counts = {}

    def expect(self, what, text, found, expected):
        if found == expected:
            return
        self.counts[what] = self.counts.get(what, 0) + 1
        if self.counts[what] <= SHOWN:
            print(f"{self.family}: {what}: {text!r}\n  pagoda  {found!r}\n  library {expected!r}")


def check(pagoda, family, path, strings):
    """Compares one tokenizer on these strings: the Report."""
    directory = os.path.dirname(path)
    library = Tokenizer.from_file(path)
    bare = [{"text": s, "add_special_tokens": False, "parse_special_tokens": True} for s in strings]
    full = [{"text": s, "parse_special_tokens": True} for s in strings]
    report = Report(family)
    expected = [e.ids for e in library.encode_batch(strings, add_special_tokens=False)]
    for s, answer, ids in zip(strings, run(pagoda, "tokenize", directory, bare), expected):
        report.expect("encode", s, answer.get("ids", answer), ids)
    prefixed = [e.ids for e in library.encode_batch(strings, add_special_tokens=True)]
    for s, answer, ids in zip(strings, run(pagoda, "tokenize", directory, full), prefixed):
        if ids[:1] == ids[1:2] and answer.get("ids") == ids[1:]:
            continue  # Pagoda's rule: a text that begins with BOS does not get a second one
        report.expect("encode with special tokens", s, answer.get("ids", answer), ids)
    # The library decodes such control tokens with their blank and never skips them; Pagoda does skip them.
    for skip in () if family == "llama2_normalized_specials" else (True, False):
        asked = [{"ids": ids, "skip_special_tokens": skip, "pieces": True} for ids in expected]
        texts = library.decode_batch(expected, skip_special_tokens=skip)
        for s, answer, decoded in zip(strings, run(pagoda, "detokenize", directory, asked), texts):
            report.expect(f"decode, skip_special_tokens={skip}", s, answer.get("text", answer), decoded)
            report.expect("pieces", s, "".join(answer.get("pieces", [])), answer.get("text"))
    return report


def task(arguments):
    """One chunk of strings of one family: its name, how many strings, and the differences."""
    pagoda, family, path, seed, number = arguments
    strings = Strings(seed)
    report = check(pagoda, family, path, [strings.next() for _ in range(number)])
    return family, number, sum(report.counts.values())


def tasks(pagoda, paths, number, seed):
    for family, path in paths.items():
        for first in range(0, number, CHUNK):
            yield pagoda, family, path, f"{seed} {first}", min(CHUNK, number - first)


def write_families(folder, names):
    """Where each family's tokenizer.json is."""
    paths = {}
    for name, make in tokenizer_families.FAMILIES.items():
        if names and name not in names:
            continue
        path = pathlib.Path(folder) / name / "tokenizer.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(make()), encoding="utf-8")
        paths[name] = str(path)
    return paths


def read_families(folder, names):
    paths = {path.parent.name: str(path) for path in sorted(pathlib.Path(folder).glob("*/tokenizer.json"))}
    return {name: path for name, path in paths.items() if not names or name in names}


def compare(options, paths):
    published = tokenizer_families.conformance_families()
    paths.update({name: path for name, path in published.items() if not options.names or name in options.names})
    if not paths:
        raise SystemExit("no tokenizer to compare")
    strings, differences = dict.fromkeys(paths, 0), dict.fromkeys(paths, 0)
    with multiprocessing.Pool(options.jobs) as pool:
        work = tasks(options.pagoda, paths, options.strings, options.seed)
        for family, number, different in pool.imap_unordered(task, work):
            strings[family] += number
            differences[family] += different
            if strings[family] == options.strings:
                print(f"{family}: {strings[family]} strings, {differences[family]} differences", flush=True)
    total = sum(differences.values())
    print(f"tokenizers: {len(paths)} families, {sum(strings.values())} strings, {total} differences")
    return total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("pagoda")
    parser.add_argument("--strings", type=int, default=100_000)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--families")
    parser.add_argument("--write")
    parser.add_argument("names", nargs="*")
    options = parser.parse_intermixed_args()
    if options.write:
        print(f"{len(write_families(options.write, options.names))} tokenizers written to {options.write}")
        return 0
    if options.families:
        return 1 if compare(options, read_families(options.families, options.names)) else 0
    with tempfile.TemporaryDirectory() as folder:
        return 1 if compare(options, write_families(folder, options.names)) else 0


if __name__ == "__main__":
    sys.exit(main())
