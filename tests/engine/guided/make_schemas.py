#!/usr/bin/env python3
"""Writes the corpus of JSON schemas: tests/engine/guided/make_schemas.py > tests/data/guided/schemas.json

accepted: name -> schema; outputs under it must parse and validate. refused: [keyword that the error names, schema].
"""
import json
import random

accepted = {}
refused = []


def add(name, schema):
    assert name not in accepted, name
    accepted[name] = schema


def obj(properties, required=None, **more):
    schema = {"type": "object", "properties": properties}
    if required is not None:
        schema["required"] = required
    schema.update(more)
    return schema


S, I, N, B, Z = ({"type": t} for t in ("string", "integer", "number", "boolean", "null"))
short = {"type": "string", "maxLength": 8}

# Types alone and together.
for name, schema in {"string": S, "integer": I, "number": N, "boolean": B, "null": Z}.items():
    add(f"type_{name}", schema)
for i, types in enumerate([["string", "null"], ["integer", "boolean"], ["number", "null"], ["integer", "number"],
                           ["array", "null"], ["object", "string"]]):
    add(f"types_{i}", {"type": types})
add("any_true", True)
add("any_empty", {})

# Properties and required.
add("properties_1", obj({"a": I}))
add("properties_2", obj({"a": I, "b": short}, ["a"]))
add("properties_3", obj({"a": I, "b": short, "c": B}, ["c"]))
add("properties_4", obj({"quote\"d": I, "back\\slash": B, "line\nend": Z, "é": I}, ["é"]))
add("properties_5", obj({f"p{i}": I for i in range(30)}, [f"p{i}" for i in range(0, 30, 3)]))
add("properties_6", obj({"": I, " ": B}, [""]))
add("required_1", obj({"a": I, "b": I}, ["a", "b"]))
add("required_2", obj({"a": I, "b": I}, ["b", "a"]))
add("required_3", obj({"x": B}, ["x", "unnamed"]))
add("required_4", {"type": "object", "required": ["only"]})
add("nested_1", obj({"o": obj({"o": obj({"o": obj({"o": obj({"v": I}, ["v"])}, ["o"])}, ["o"])}, ["o"])}, ["o"]))
add("nested_2", obj({"list": {"type": "array", "items": obj({"k": short, "v": I}, ["k", "v"]), "maxItems": 3}}, ["list"]))

# additionalProperties.
add("additional_1", obj({"a": I}, ["a"], additionalProperties=False))
add("additional_2", obj({"a": I}, additionalProperties=B))
add("additional_3", obj({"name": I, "names": I, "n": I}, ["name"], additionalProperties={"type": "null"}))
add("additional_4", {"type": "object", "additionalProperties": I})
add("additional_5", {"type": "object", "additionalProperties": obj({"x": B}, ["x"])})
add("additional_6", obj({"a": I}, ["a", "b"], additionalProperties=B))
add("additional_7", {"type": "object", "additionalProperties": I, "maxProperties": 2})
add("additional_8", {"type": "object", "additionalProperties": False})
add("additional_9", obj({"é": I, "éa": I}, additionalProperties=Z))

# enum and const.
add("enum_1", {"enum": ["red", "green", "blue"]})
add("enum_2", {"enum": [1, 2.5, -3e10, 0]})
add("enum_3", {"enum": [None, True, "x", 4, [1, "a"], {"k": "v"}]})
add("enum_4", {"type": "string", "enum": ["a", 1, "b", None]})
add("enum_5", {"enum": ["a", "ab", "abc", "abcd"]})
add("enum_6", {"enum": ["tab\t", "quote\"", "\\", "日本", "😀", "\u0001"]})
add("enum_7", {"type": "integer", "enum": [1, 2, 30], "maximum": 10})
add("const_1", {"const": "fixed"})
add("const_2", {"const": {"a": [1, 2, {"b": None}]}})
add("const_3", {"const": None})
add("const_4", obj({"kind": {"const": "k"}, "n": {"const": 7}}, ["kind", "n"]))
add("const_5", {"const": ""})

# anyOf, oneOf, allOf.
add("anyof_1", {"anyOf": [I, short]})
add("anyof_2", {"anyOf": [obj({"a": I}, ["a"]), obj({"b": B}, ["b"])]})
add("anyof_3", {"anyOf": [{"const": 1}, {"const": 2}, {"type": "null"}]})
add("anyof_4", obj({"v": {"anyOf": [I, Z]}}, ["v"]))
add("anyof_5", {"type": "integer", "anyOf": [{"maximum": 3}, {"minimum": 1000, "maximum": 1005}]})
add("anyof_6", {"anyOf": [{"anyOf": [B, Z]}, {"anyOf": [I, {"type": "array", "items": I, "maxItems": 2}]}]})
add("anyof_7", obj({"a": I}, ["a"], anyOf=[obj({"b": B}, ["b"]), obj({"c": Z}, ["c"])]))
add("oneof_1", {"oneOf": [I, short]})
add("oneof_2", {"oneOf": [obj({"t": {"const": "x"}, "x": I}, ["t", "x"]), obj({"t": {"const": "y"}, "y": B}, ["t", "y"])]})
add("oneof_3", {"oneOf": [{"enum": [1, 2]}, {"enum": [3, 4]}, {"type": "boolean"}]})
add("allof_1", {"allOf": [{"type": "integer"}, {"minimum": 5}, {"maximum": 9}]})
add("allof_2", {"allOf": [obj({"a": I}, ["a"]), obj({"b": B}, ["b"])]})
add("allof_3", {"allOf": [{"type": "string", "minLength": 2}, {"maxLength": 4}]})
add("allof_4", {"allOf": [{"enum": [1, 2, 3, 4]}, {"enum": [3, 4, 5]}]})
add("allof_5", {"allOf": [obj({"a": {"minimum": 3}}), obj({"a": {"type": "integer", "maximum": 6}}, ["a"])]})
add("allof_6", {"allOf": [{"type": ["integer", "string"]}, {"type": ["integer", "null"]}]})
add("allof_7", {"allOf": [{"anyOf": [I, B]}, {"anyOf": [B, Z]}]})
add("allof_8", {"allOf": [obj({"a": I}, additionalProperties=B), obj({"b": {"const": True}}, ["b"])]})
add("allof_9", {"type": "number", "allOf": [{"type": "integer"}], "minimum": -3, "maximum": 3})

# $ref, also recursive.
add("ref_1", {"$defs": {"p": obj({"x": I, "y": I}, ["x", "y"])}, "type": "array", "items": {"$ref": "#/$defs/p"},
              "maxItems": 3})
add("ref_2", {"$defs": {"node": obj({"v": I, "next": {"anyOf": [Z, {"$ref": "#/$defs/node"}]}}, ["v", "next"])},
              "$ref": "#/$defs/node"})
add("ref_3", obj({"child": {"$ref": "#"}, "v": B}, ["v"]))
add("ref_4", {"definitions": {"tree": {"type": "array", "items": {"$ref": "#/definitions/tree"}, "maxItems": 2}},
              "$ref": "#/definitions/tree"})
add("ref_5", {"$defs": {"a/b": I, "c~d": B}, "properties": {"x": {"$ref": "#/$defs/a~1b"}, "y": {"$ref": "#/$defs/c~0d"}},
              "required": ["x", "y"], "type": "object"})
add("ref_6", {"$defs": {"n": {"type": "integer"}}, "properties": {"v": {"$ref": "#/$defs/n", "minimum": 3, "maximum": 4}},
              "required": ["v"], "type": "object"})
add("ref_7", {"$defs": {"e": {"oneOf": [{"type": "integer"}, obj({"op": {"enum": ["+", "*"]}, "l": {"$ref": "#/$defs/e"},
              "r": {"$ref": "#/$defs/e"}}, ["op", "l", "r"])]}}, "$ref": "#/$defs/e"})
add("ref_8", {"$defs": {"even": obj({"odd": {"$ref": "#/$defs/odd"}}), "odd": obj({"even": {"$ref": "#/$defs/even"}})},
              "$ref": "#/$defs/even"})

# pattern.
for i, pattern in enumerate(["^[a-z]+$", "^[A-Z]{2}[0-9]{4}$", "^(yes|no|maybe)$", "^a.c$", "b", "^x", "y$",
                             "^[^a-z]{1,3}$", "^\\d{3}-\\d{4}$", "^\\w+@\\w+\\.com$", "^(a|b)*c$", "^a|b$",
                             "^[\\-\\]]{2}$", "^\\s?\\S{1,4}$", "^(?:0|[1-9]\\d{0,2})(?:\\.\\d+)?$", "^\\u0041\\x42$",
                             "^[\"\\\\/]{1,4}$", "^(ab){2,3}$", "^.{3,5}$", "^[а-я]{1,5}$", "^a{100}$", "^(a{1,3}b){1,40}$"]):
    add(f"pattern_{i}", {"type": "string", "pattern": pattern})

# Bounds of numbers.
bounds = [dict(minimum=0, maximum=10), dict(minimum=-5, maximum=5), dict(exclusiveMinimum=0, exclusiveMaximum=3),
          dict(minimum=7), dict(maximum=-7), dict(minimum=99, maximum=101), dict(minimum=123456, maximum=123460),
          dict(minimum=-1000, maximum=-998), dict(minimum=0, maximum=0), dict(exclusiveMinimum=-2),
          dict(minimum=9223372036854775800, maximum=9223372036854775807),
          dict(minimum=18446744073709551600, maximum=18446744073709551615), dict(minimum=1e18, maximum=2e18)]
for i, b in enumerate(bounds):
    add(f"integer_{i}", {"type": "integer", **b})
for i, b in enumerate(bounds + [dict(minimum=0.5, maximum=0.75), dict(exclusiveMinimum=0.1, exclusiveMaximum=0.2),
                                dict(minimum=-0.25, maximum=0.25), dict(minimum=3.14159, maximum=3.1416),
                                dict(minimum=1e-5, maximum=2e-5), dict(exclusiveMinimum=-1.5, maximum=-1.25),
                                dict(minimum=2.5, maximum=2.5), dict(minimum=99.99, maximum=100.01)]):
    add(f"number_{i}", {"type": "number", **b})
add("integer_fraction_bounds", {"type": "integer", "minimum": 1.5, "maximum": 4.5})
add("multiple_of_1", {"type": "number", "multipleOf": 1, "minimum": 3, "maximum": 6})

# Lengths.
for i, (low, high) in enumerate([(0, 0), (1, 1), (0, 5), (3, 5), (10, 20), (2, None), (100, 120), (0, 1000)]):
    schema = {"type": "string", "minLength": low}
    if high is not None:
        schema["maxLength"] = high
    add(f"length_{i}", schema)

# Arrays.
add("items_1", {"type": "array", "items": I})
add("items_2", {"type": "array", "items": I, "minItems": 2})
add("items_3", {"type": "array", "items": B, "maxItems": 3})
add("items_4", {"type": "array", "items": B, "minItems": 3, "maxItems": 3})
add("items_5", {"type": "array", "items": {"type": "array", "items": I, "maxItems": 2}, "maxItems": 2})
add("items_6", {"type": "array", "maxItems": 2})
add("items_7", {"type": "array", "items": False})
add("items_8", {"type": "array", "items": B, "minItems": 20, "maxItems": 40})
add("items_9", {"type": "array", "items": I, "maxItems": 0})
add("items_10", {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 1}, "uniqueItems": True, "maxItems": 1})
add("prefix_1", {"type": "array", "prefixItems": [I, short, B]})
add("prefix_2", {"type": "array", "prefixItems": [I, short], "items": False, "minItems": 2})
add("prefix_3", {"type": "array", "prefixItems": [I], "items": B, "minItems": 1, "maxItems": 4})
add("prefix_4", {"type": "array", "prefixItems": [I, B, Z], "minItems": 2, "maxItems": 2})
add("prefix_5", {"type": "array", "prefixItems": [{"const": "a"}], "minItems": 3, "maxItems": 3})
add("prefix_6", {"allOf": [{"type": "array", "prefixItems": [I]}, {"prefixItems": [{"minimum": 3}, B], "minItems": 2}]})

# Formats.
for name in ["date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"]:
    add(f"format_{name}", {"type": "string", "format": name})

# Keywords without a type, annotations.
add("implied_1", {"properties": {"a": I}, "required": ["a"]})
add("implied_2", {"minLength": 2, "maxLength": 3})
add("implied_3", {"items": I, "maxItems": 2})
add("implied_4", {"minimum": 3, "maximum": 5})
add("annotations", {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://example.com/s", "title": "t",
                    "description": "d", "default": 1, "examples": [1], "deprecated": False, "readOnly": True,
                    "x-order": 3, "$comment": "c", "type": "integer"})

# As people write them.
add("person", obj({"name": {"type": "string", "minLength": 1, "maxLength": 20},
                   "age": {"type": "integer", "minimum": 0, "maximum": 150}, "email": {"type": "string", "format": "email"},
                   "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 3}}, ["name", "age"],
                  additionalProperties=False))
add("weather_call", obj({"name": {"const": "get_weather"},
                         "arguments": obj({"city": short, "unit": {"enum": ["celsius", "fahrenheit"]}}, ["city"])},
                        ["name", "arguments"]))
add("geo", {"type": "array", "items": obj({"type": {"const": "Point"}, "coordinates": {"type": "array", "prefixItems": [
    {"type": "number", "minimum": -180, "maximum": 180}, {"type": "number", "minimum": -90, "maximum": 90}], "minItems": 2,
    "items": False}}, ["type", "coordinates"]), "minItems": 1, "maxItems": 2})

# Random ones, from the same parts, until there are 200.
rng = random.Random(6)


def make(depth):
    leaf = [lambda: I, lambda: B, lambda: Z, lambda: short, lambda: {"enum": rng.sample(["u", "v", "w", 1, 2, None], 3)},
            lambda: {"type": "integer", "minimum": rng.randint(-99, 0), "maximum": rng.randint(1, 999)},
            lambda: {"type": "string", "pattern": rng.choice(["^[a-f]{1,4}$", "^x?y+$", "^(p|q)r$"])},
            lambda: {"type": "number", "minimum": rng.randint(-9, 0), "exclusiveMaximum": rng.randint(1, 9) + 0.5}]
    if depth == 0:
        return rng.choice(leaf)()
    kind = rng.randrange(4)
    if kind == 0:
        return {"type": "array", "items": make(depth - 1), "minItems": rng.randint(0, 2), "maxItems": rng.randint(2, 4)}
    if kind == 1:
        return {"anyOf": [make(depth - 1) for _ in range(rng.randint(2, 3))]}
    names = rng.sample(["id", "name", "value", "kind", "list", "next", "x", "y"], rng.randint(1, 5))
    return obj({name: make(depth - 1) for name in names}, [n for n in names if rng.random() < 0.6],
               **({"additionalProperties": rng.choice([False, B])} if rng.random() < 0.5 else {}))


i = 0
while len(accepted) < 210:
    add(f"random_{i}", make(rng.randint(1, 4)))
    i += 1

for keyword, schema in [
    ("not", {"not": I}), ("if", {"if": I, "then": {"minimum": 1}}), ("patternProperties", {"patternProperties": {"a": I}}),
    ("propertyNames", {"propertyNames": {"maxLength": 3}}), ("contains", {"contains": I}),
    ("uniqueItems", {"type": "array", "uniqueItems": True}), ("multipleOf", {"type": "integer", "multipleOf": 3}),
    ("dependentRequired", {"dependentRequired": {"a": ["b"]}}), ("dependentSchemas", {"dependentSchemas": {"a": {}}}),
    ("unevaluatedProperties", {"unevaluatedProperties": False}), ("$dynamicRef", {"$dynamicRef": "#x"}),
    ("minContains", {"minContains": 1}), ("format", {"type": "string", "format": "iri"}),
    ("$ref", {"$ref": "https://example.com/x"}), ("$ref", {"$ref": "#/$defs/none"}), ("$ref", {"$ref": "#"}),
    ("$ref", {"allOf": [{"$ref": "#"}]}), ("$ref", {"anyOf": [{"$ref": "#"}, I]}), ("minProperties", {"type": "object", "minProperties": 2}),
    ("maxProperties", obj({"a": I, "b": I}, maxProperties=1)), ("oneOf", {"oneOf": [I, N]}),
    ("oneOf", {"oneOf": [obj({"a": I}), obj({"b": I})]}), ("items", {"type": "array", "items": [I, B]}),
    ("pattern", {"type": "string", "pattern": "(?=a)"}), ("pattern", {"type": "string", "pattern": "\\bx"}),
    ("pattern", {"type": "string", "pattern": "(a)\\1"}), ("pattern", {"type": "string", "pattern": "a**"}),
    ("minLength", {"type": "string", "pattern": "a", "minLength": 2}), ("type", {"type": "text"}),
    ("additionalItems", {"additionalItems": I}), ("minimum", {"minimum": "3"}), ("maxLength", {"maxLength": -1}),
    ("no text matches", {"type": "integer", "minimum": 3, "maximum": 2}), ("no text matches", False),
    ("no text matches", {"allOf": [I, S]}), ("no text matches", obj({"a": False}, ["a"])),
    ("enum", {"enum": ["a"], "pattern": "b"}), ("unknownKeyword", {"unknownKeyword": 1}),
]:
    refused.append([keyword, schema])

print('{"accepted": {')
print(",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in accepted.items()))
print('},\n"refused": [')
print(",\n".join(json.dumps(r) for r in refused))
print("]}")
