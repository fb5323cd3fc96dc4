#!/usr/bin/env python3
"""Validates what constraints let through with the jsonschema package (pip install 'jsonschema[format]').

    PAGODA_GUIDED_OUTPUTS=/tmp/outputs.jsonl PAGODA_GUIDED_SEEDS=1000 guided_test --gtest_filter='SchemaCorpusTest.*'
    tests/peers/jsonschema_peer.py /tmp/outputs.jsonl

Each line is {"name": of a schema in tests/data/guided/schemas.json, "text": an output}. Exit code 1 where one does not
parse or validate.
"""
import json
import pathlib
import sys

import jsonschema

root = pathlib.Path(__file__).resolve().parents[2]
corpus = json.loads((root / "tests/data/guided/schemas.json").read_text())["accepted"]
validators = {}
for name, schema in corpus.items():
    jsonschema.Draft202012Validator.check_schema(schema)
    validators[name] = jsonschema.Draft202012Validator(schema,
                                                    format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
counts = dict.fromkeys(corpus, 0)
bad = 0
for line in open(sys.argv[1], encoding="utf-8"):
    entry = json.loads(line)
    counts[entry["name"]] += 1
    try:
        error = next(validators[entry["name"]].iter_errors(json.loads(entry["text"])), None)
        why = error.message if error else None
    except ValueError as e:
        why = f"does not parse: {e}"
    if why:
        bad += 1
        if bad <= 20:
            print(f"{entry['name']}: {entry['text']!r}: {why}")
print(f"{sum(counts.values())} outputs of {len(counts)} schemas, {bad} invalid; fewest of one schema: "
      f"{min(counts.values())}")
sys.exit(1 if bad else 0)
