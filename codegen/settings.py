"""Writes docs/settings.md and settings.yaml, all settings of a server, from `service.settings.config.ServerSettings`.

python -m codegen.settings [--check]   --check fails if the page is out of date, and changes nothing
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from codegen.generated_files import ROOT, update
from service.settings.config import PREFIX, ServerSettings
from service.settings.loading import OTHERS

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

[settings.yaml](settings.yaml) has every setting with its meaning, the values that it accepts, and its default.
The value of `max_queue` is the first that is given of:

1. the flag `glossa serve --max-queue 64`
2. the environment variable `{prefix}MAX_QUEUE=64`
3. the key `max_queue: 64` of the YAML file that `--config FILE` or `{prefix}CONFIG` names
4. its default

A switch is turned off by its flag with `no-`, such as `--no-reflection`. Unknown names are refused in each of them. The
commands that call a server read other variables: {others}.
"""
SAMPLE_HEAD = """\
# Every setting of a server with its default; those without one are comments. Keep the lines that you change.
# Made by `make settings`.
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


def sample() -> str:
    """A settings file that changes nothing, with what each setting means and accepts as a comment."""
    schemas = ServerSettings.model_json_schema()["properties"]
    parts = [SAMPLE_HEAD]
    for name, field in ServerSettings.model_fields.items():
        if name == "config":
            continue
        words = f"{field.description}; {accepts(schemas[name])}"
        comment = textwrap.fill(words, 118, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False)
        parts.append(f"{comment}\n{_line(name, field.default)}")
    return "\n".join(parts)


def _line(name: str, default: Any) -> str:
    if name == "models":
        return f"models:\n  demo: {BUNDLE}  # NAME: BUNDLE, relative to where the server starts\n"
    return f"# {name}:\n" if default is None else f"{name}: {json.dumps(default)}\n"


def page() -> str:
    """The whole page."""
    return HEAD.format(prefix=PREFIX, others=", ".join(f"`{name}`" for name in OTHERS))


def main(arguments: Sequence[str] | None = None) -> None:
    """Rewrite page and file if they are out of date, or with --check fail if they are."""
    update({PAGE: page(), SAMPLE: sample()}, arguments, target="settings", description="Write docs/settings.md, .yaml.")


if __name__ == "__main__":
    main()
