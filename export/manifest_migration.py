"""Manifests of earlier format versions: pure functions from JSON values to JSON values of the next version.

A server reads the formats of the two releases before its own. Files of a bundle are never changed: a migration renames
keys and values of `manifest.json`, and ONNX tensors keep the names that the graphs use. `export.manifest` parses and
checks the result, so a migration leaves unknown values unchanged.

    8 (release 0.1.0) -> 9 (release 0.2.0)    standard names for schemes, graph roles, special tokens and attention

This module uses the standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Json = dict[str, Any]

SCHEMES_OF_8: Mapping[str, str] = {
    "row": "w8a8-dynamic",
    "static": "w8a8-static",
    "row+kv": "w8a8-dynamic-kv8",
    "static+kv": "w8a8-static-kv8",
    "8b64": "w8-block64",
    "b32": "w4-block32",
    "b128": "w4-block128",
}
TEMPLATE_OF_8: Mapping[str, str] = {
    "before_source": "source_prefix",
    "after_source": "source_suffix",
    "before_target": "target_prefix",
}
ROLES_OF_8: Mapping[str, str] = {"rank": "logprobs", "words": "project_shortlist", "rank_words": "shortlist_logprobs"}
KINDS_OF_8: Mapping[str, str] = {"words": "shortlist"}
ACTIVATIONS_OF_8: Mapping[str, str] = {"row": "dynamic"}


def from_8(manifest: Json) -> Json:
    """Return a format 8 manifest in format 9, without changing the argument."""
    result = _renamed(manifest, {"framing": "template", "attention": "alignment", "seen": "attention_maps"})
    result = _inside(result, "template", lambda template: _renamed(template, TEMPLATE_OF_8))
    result = _inside(result, "tokens", lambda tokens: _renamed(tokens, {"more_eos": "extra_eos"}))
    return {**_each(result, "variants", _variant_from_8), "format_version": 9}


def _variant_from_8(variant: Json) -> Json:
    variant = _inside(variant, "graphs", _graphs_from_8)
    variant = _each(variant, "states", lambda state: _with(state, "kind", KINDS_OF_8))
    variant = _inside(variant, "quantization", _quantization_from_8)
    return _each(variant, "comparison", _measurement_from_8)


def _graphs_from_8(graphs: Json) -> Json:
    graphs = _renamed(graphs, ROLES_OF_8)
    for role in graphs:
        graphs = _inside(graphs, role, lambda graph: _with(graph, "role", ROLES_OF_8))
    return graphs


def _quantization_from_8(quantization: Json) -> Json:
    quantization = _with(
        _renamed(quantization, {"form": "scheme", "block": "block_size", "cache": "kv_cache"}), "scheme", SCHEMES_OF_8
    )
    return _with(quantization, "activations", ACTIVATIONS_OF_8)


def _measurement_from_8(measured: Json) -> Json:
    names = {
        "form": "scheme",
        "sentences": "evaluation_samples",
        "tokens_per_s_alone": "single_stream_tokens_per_s",
    }
    return _with(_renamed(measured, names), "scheme", SCHEMES_OF_8)


MIGRATIONS: Mapping[int, Callable[[Json], Json]] = {8: from_8}  # by source version


def migrated(manifest: Json, version: int) -> Json:
    """Convert a manifest of an earlier `version`, one of `MIGRATIONS`, to the current format."""
    while version in MIGRATIONS:
        manifest = MIGRATIONS[version](manifest)
        version = manifest["format_version"]
    return manifest


def _renamed(values: Json, names: Mapping[str, str]) -> Json:
    """Rename some keys and keep the order. An existing new key keeps its position, and the old key stays too."""
    return {names[key] if key in names and names[key] not in values else key: value for key, value in values.items()}


def _with(values: Json, key: str, names: Mapping[str, str]) -> Json:
    """Map the value of one key."""
    value = values.get(key)
    return {**values, key: names[value]} if isinstance(value, str) and value in names else values


def _inside(values: Json, key: str, change: Callable[[Json], Json]) -> Json:
    """Transform the value of one key if it is an object."""
    value = values.get(key)
    return {**values, key: change(value)} if isinstance(value, dict) else values


def _each(values: Json, key: str, change: Callable[[Json], Json]) -> Json:
    """Transform the objects in the list of one key if it is a list."""
    value = values.get(key)
    if not isinstance(value, list):
        return values
    return {**values, key: [change(item) if isinstance(item, dict) else item for item in value]}
