"""Writes docs/settings.md and settings.yaml, all settings of a server, from `service.settings.config.ServerSettings`.

python -m codegen.settings [--check]   --check fails if the page is out of date, and changes nothing
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from codegen.generated_files import ROOT, update
from service.settings.config import OTHERS, PREFIX, ServerSettings, shown_default

PAGE, SAMPLE = ROOT / "docs" / "settings.md", ROOT / "docs" / "settings.yaml"
BUNDLE = "runs/demo/bundle"
TYPES = {
    "integer": "integer",
    "number": "number",
    "boolean": "true, false",
    "string": "text",
    "array": "list",
    "object": "mapping",
}
BOUNDS = {"minimum": "≥{}", "exclusiveMinimum": ">{}", "maximum": "≤{}", "exclusiveMaximum": "<{}"}
HEAD = """# Settings of a server

The value of `max_queue` is the first that is given of:

1. the flag `glossa serve --max-queue 64`
2. the environment variable `{prefix}MAX_QUEUE=64`
3. the key `max_queue: 64` of the YAML file `--config FILE` or `{prefix}CONFIG`; [settings.yaml](settings.yaml) has
   all defaults: keep the lines that you change
4. its default

A switch is turned off by its flag with `no-`, such as `--no-reflection`. Unknown names are refused in each of them. The
commands that call a server read other variables: {others}.

| setting | accepts | default | meaning |
|---|---|---|---|
"""


def accepts(schema: Mapping[str, Any]) -> str:
    """The values of a setting in words, by its JSON schema."""
    if "anyOf" in schema:
        schema = next(kind for kind in schema["anyOf"] if kind["type"] != "null")
    items = schema.get("items", schema)
    if "enum" in items:
        return ("some of " if items is not schema else "") + ", ".join(f"`{choice}`" for choice in items["enum"])
    kind = "path" if schema.get("format") == "path" else TYPES[schema["type"]]
    if {"minimum", "maximum"} <= schema.keys():
        return f"{kind} {schema['minimum']:,}..{schema['maximum']:,}"
    return " ".join([kind, *(sign.format(f"{schema[key]:,}") for key, sign in BOUNDS.items() if key in schema)])


def rows() -> Iterator[str]:
    """One row a setting."""
    schemas = ServerSettings.model_json_schema()["properties"]
    for name, field in ServerSettings.model_fields.items():
        default = "required" if field.is_required() else shown_default(field)
        yield f"| `{name}` | {accepts(schemas[name])} | {default} | {field.description} |\n"


def sample() -> str:
    """A settings file that changes nothing."""
    lines = ["# All settings with their defaults, those without one as comments. Made by `make settings`.\n"]
    lines += [f"models:\n  demo: {BUNDLE}  # NAME: BUNDLE, relative to where the server starts\n"]
    for name, field in ServerSettings.model_fields.items():
        if name in ("config", "models"):
            continue
        lines.append(f"# {name}:\n" if field.default is None else f"{name}: {json.dumps(field.default)}\n")
    return "".join(lines)


def page() -> str:
    """The whole page."""
    head = HEAD.format(prefix=PREFIX, others=", ".join(f"`{name}`" for name in OTHERS))
    return head + "".join(rows())


def main(arguments: Sequence[str] | None = None) -> None:
    """Rewrite page and file if they are out of date, or with --check fail if they are."""
    update({PAGE: page(), SAMPLE: sample()}, arguments, target="settings", description="Write docs/settings.md, .yaml.")


if __name__ == "__main__":
    main()
