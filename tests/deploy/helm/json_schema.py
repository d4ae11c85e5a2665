"""As much of JSON Schema as the chart's schema and those of `crds/` use: a value's problems, each with its path."""

import re
from typing import Any

TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": int | float,
    "null": type(None),
}
KNOWN = {"$schema", "title", "type", "enum", "pattern", "minLength", "maxLength", "minimum", "exclusiveMinimum"}
KNOWN |= {"maximum", "required", "properties", "additionalProperties", "minProperties", "propertyNames", "items"}
KNOWN |= {"uniqueItems", "minItems"}


def problems(value, schema, path="."):
    """What is wrong with a value, one text for each problem. A keyword that is not known here is an error."""
    assert schema.keys() <= KNOWN, schema.keys() - KNOWN
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    if types and not any(_is(value, name) for name in types):
        yield f"{path}: {value!r} is no {' or '.join(types)}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: {value!r} is none of {schema['enum']}"
    if isinstance(value, str):
        yield from _of_text(value, schema, path)
    elif isinstance(value, dict):
        yield from _of_object(value, schema, path)
    elif isinstance(value, list):
        if len(value) < schema.get("minItems", 0):
            yield f"{path}: too few"
        for number, item in enumerate(value):
            yield from problems(item, schema.get("items", {}), f"{path}[{number}]")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        bad = value < schema.get("minimum", value) or value > schema.get("maximum", value)
        if bad or value <= schema.get("exclusiveMinimum", value - 1):
            yield f"{path}: {value} is out of bounds"


def _is(value, name):
    return isinstance(value, TYPES[name]) and not (isinstance(value, bool) and name in ("integer", "number"))


def _of_text(value, schema, path):
    if not re.search(schema.get("pattern", ""), value):
        yield f"{path}: {value!r} does not match {schema['pattern']}"
    if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
        yield f"{path}: {value!r} has the wrong length"


def _of_object(value, schema, path):
    properties, others = schema.get("properties", {}), schema.get("additionalProperties", {})
    for name in schema.get("required", []):
        if name not in value:
            yield f"{path}: {name} is missing"
    if len(value) < schema.get("minProperties", 0):
        yield f"{path}: too few"
    for name, item in value.items():
        yield from problems(name, schema.get("propertyNames", {}), f"{path}{name}")
        if name not in properties and others is False:
            yield f"{path}: {name} is not known"
        else:
            yield from problems(item, properties.get(name, others), f"{path}{name}.")
