"""Writes docs/settings.md, the page of all settings of a server, from `service.settings.config.ServerSettings`.

python -m codegen.settings [--check]   --check fails if the page is out of date, and changes nothing
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from codegen.generated_files import ROOT, update
from service.settings.config import OTHERS, PREFIX, ServerSettings, shown_default

PAGE = ROOT / "docs" / "settings.md"
BUNDLE = "runs/demo/bundle"
TYPES = {
    "integer": "whole number",
    "number": "number",
    "boolean": "true, false",
    "string": "text",
    "array": "list",
    "object": "mapping",
}
BOUNDS = {"minimum": "from {}", "exclusiveMinimum": "above {}", "maximum": "to {}", "exclusiveMaximum": "below {}"}
HEAD = """# Settings of a server

Made by `make settings` from the settings themselves. The value of `max_queue` is the first that is given of:

1. the flag `glossa serve --max-queue 64`
2. the environment variable `{prefix}MAX_QUEUE=64`
3. the key `max_queue: 64` of the YAML file that `--config FILE` or `{prefix}CONFIG` names
4. its default

A switch is turned off by its flag with `no-`, such as `--no-reflection`. Unknown names are refused in each of them. The
commands that call a server read other variables: {others}.

## All settings

| setting | accepts | default | meaning |
|---|---|---|---|
"""
SAMPLE = """
## A file with all of them

Each has its default here, and those without one are comments: keep the lines that you change.

```yaml
{sample}```
"""


def accepts(schema: Mapping[str, Any]) -> str:
    """The values of a setting in words, by its JSON schema."""
    if "anyOf" in schema:
        schema = next(kind for kind in schema["anyOf"] if kind["type"] != "null")
    items = schema.get("items", schema)
    if "enum" in items:
        return ("some of " if items is not schema else "") + ", ".join(f"`{choice}`" for choice in items["enum"])
    kind = "path" if schema.get("format") == "path" else TYPES[schema["type"]]
    return " ".join([kind, *(words.format(f"{schema[key]:,}") for key, words in BOUNDS.items() if key in schema)])


def rows() -> Iterator[str]:
    """One row a setting."""
    schemas = ServerSettings.model_json_schema()["properties"]
    for name, field in ServerSettings.model_fields.items():
        default = "required" if field.is_required() else shown_default(field)
        yield f"| `{name}` | {accepts(schemas[name])} | {default} | {field.description} |\n"


def sample() -> str:
    """A settings file that changes nothing."""
    lines = [f"models:\n  demo: {BUNDLE}  # NAME: BUNDLE, relative to where the server starts\n"]
    for name, field in ServerSettings.model_fields.items():
        if name in ("config", "models"):
            continue
        lines.append(f"# {name}:\n" if field.default is None else f"{name}: {json.dumps(field.default)}\n")
    return "".join(lines)


def page() -> str:
    """The whole page."""
    head = HEAD.format(prefix=PREFIX, others=", ".join(f"`{name}`" for name in OTHERS))
    return head + "".join(rows()) + SAMPLE.format(sample=sample())


def main(arguments: Sequence[str] | None = None) -> None:
    """Rewrite the page if it is out of date, or with --check fail if it is."""
    update({PAGE: page()}, arguments, target="settings", description="Write docs/settings.md.")


if __name__ == "__main__":
    main()
