"""Grammars that are nearly right: what a careless or a hostile client sends."""

import json
from random import Random
from typing import Any

from service.options import GrammarKind

KEYWORDS = [
    "type",
    "enum",
    "const",
    "properties",
    "required",
    "additionalProperties",
    "patternProperties",
    "minProperties",
    "maxProperties",
    "items",
    "prefixItems",
    "additionalItems",
    "minItems",
    "maxItems",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "anyOf",
    "oneOf",
    "allOf",
    "not",
    "if",
    "$ref",
    "$defs",
    "title",
    "default",
    "$schema",
    "$id",
    "x-guidance",
]
TYPES = ["string", "integer", "number", "object", "array", "boolean", "null"]
VALUES: list[Any] = [
    *(True, False, None, 0, -1, 1, 1.5, -0.0, 1e308, 5e-324, 10**400, float("inf")),
    *("", "a", "\ud800", "\0", "(", "^a$", "#", "#/x", "#/$defs/a", "date-time", "strin", *TYPES),
    *([], [1], ["a", "a"], [{}], [True], ["string", "null"], {}, {"type": "string"}, {"a": {}}),
]
LARK = [
    *("start:", " A", "a", ":", "\n", '"a"', '"', "/[a-z]+/", "/", "|", "?", "*", "+", "(", ")", "{1,3}", "{", "}"),
    *("%ignore", "%import common.INT", "%lark", "-> x", '"a".."z"', "!", "//c", "\\", r'"\ud800"', "@schema", "<eos>"),
    *("[capture]", "[max_tokens=3]", '[stop="a"]', "[lazy]", "=", "\0", "<", "é", ".2", "start: A\nA: /a/\n"),
]
REGEX = [
    *"ab.*+?|()[]{}^$\\-,:=<é\0",
    *(r"\d", r"\p{L}", r"\u0041", r"\ud800", r"\b", r"\A", r"\Q", "{1,3}", "{,3}", "(?i)", "(?:", "(?P<a>", "[^", "&&"),
]


def near_valid(rng: Random, kind: GrammarKind) -> str:
    if kind == "json_schema":
        return json.dumps(_schema(rng))
    return ("start: " if kind == "lark" else "") + "".join(
        rng.choices(LARK if kind == "lark" else REGEX, k=rng.randint(1, 10))
    )


def _schema(rng: Random, depth: int = 0) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for name in rng.sample(KEYWORDS, rng.randint(1, 4)):
        schema[name] = rng.choice(VALUES)
        if depth < 3 and rng.random() < 0.4:
            inner = _schema(rng, depth + 1)
            schema[name] = rng.choice([inner, [inner], {"a": inner}, [inner, _schema(rng, depth + 1)]])
    if rng.random() < 0.3:
        schema["type"] = rng.choice(TYPES)
    return schema
