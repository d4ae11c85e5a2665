"""Manifests of earlier format versions: pure functions from JSON values to JSON values of the next version.

A server reads the formats of the two releases before its own. Files of a bundle are never changed: a migration renames
keys and values of `manifest.json`, and ONNX tensors keep the names that the graphs use. `export.bundle.manifest_parser`
parses and checks the result, so a migration leaves unknown values unchanged.

    8 (release 0.1.0) -> 9 (release 0.2.0)    standard names for schemes, graph roles, special tokens and attention
    9 (release 0.2.0) -> 11                   manifest.sha256 beside the manifest; inputs key_positions and total_slots
                                              of `decode`; encoding.has_token_labels; calibrations; context
    11 -> 12                                  source_unit: nobody knows that of an older bundle, so its texts stay
                                              whole; encoding.pooling and normalized; calibrations.*.adequacy, without
                                              which confidence stays as it was
    12 -> 13                                  encoding.dense_width, prompts, default_prompt and pools_prompt
    13 -> 14                                  window of states: 0, their caches hold all positions
    14 -> 15                                  limits.source_vocab_size: 0, sources and targets have one vocabulary
    15 -> 16                                  source_language and target_language: nobody knows those of an older bundle

Format 10 was never released.

This module uses the standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Json = dict[str, Any]
Names = Mapping[str, str]  # old to new

SCHEMES_OF_8: Names = {
    "row": "w8a8-dynamic",
    "static": "w8a8-static",
    "row+kv": "w8a8-dynamic-kv8",
    "static+kv": "w8a8-static-kv8",
    "8b64": "w8-block64",
    "b32": "w4-block32",
    "b128": "w4-block128",
}
ROLES_OF_8: Names = {"rank": "logprobs", "words": "project_shortlist", "rank_words": "shortlist_logprobs"}
# The new names of keys, by the new path of their object, and of values, by their new path; "*": any item.
KEYS_OF_8: Mapping[str, Names] = {
    "": {"framing": "template", "attention": "alignment", "seen": "attention_maps"},
    ".template": {
        "before_source": "source_prefix",
        "after_source": "source_suffix",
        "before_target": "target_prefix",
    },
    ".tokens": {"more_eos": "extra_eos"},
    ".variants.*.graphs": ROLES_OF_8,
    ".variants.*.quantization": {"form": "scheme", "block": "block_size", "cache": "kv_cache"},
    ".variants.*.comparison.*": {
        "form": "scheme",
        "sentences": "evaluation_samples",
        "tokens_per_s_alone": "single_stream_tokens_per_s",
    },
}
VALUES_OF_8: Mapping[str, Names] = {
    ".variants.*.graphs.*.role": ROLES_OF_8,
    ".variants.*.states.*.kind": {"words": "shortlist"},
    ".variants.*.quantization.scheme": SCHEMES_OF_8,
    ".variants.*.quantization.activations": {"row": "dynamic"},
    ".variants.*.comparison.*.scheme": SCHEMES_OF_8,
}


def from_8(manifest: Json) -> Json:
    """Return a format 8 manifest in format 9, without changing the argument."""
    return {**_renamed(manifest, ""), "format_version": 9}


def from_9(manifest: Json) -> Json:
    """Return a format 9 manifest in format 11, without changing the argument."""
    encoding = manifest.get("encoding")
    if isinstance(encoding, dict):
        encoding = {**encoding, "has_token_labels": False}
    entries = {} if encoding is None else {"encoding": encoding}
    return {"calibrations": {}, "context": None, **manifest, **entries, "format_version": 11}


def from_11(manifest: Json) -> Json:
    """Return a format 11 manifest in format 12, without changing the argument."""
    entries = {}
    if isinstance(encoding := manifest.get("encoding"), dict):
        entries["encoding"] = {"pooling": "mean", "normalized": False, **encoding}
    if isinstance(calibrations := manifest.get("calibrations"), dict):
        entries["calibrations"] = {
            precision: {"adequacy": None, **found} if isinstance(found, dict) else found
            for precision, found in calibrations.items()
        }
    return {"source_unit": "text", **manifest, **entries, "format_version": 12}


def from_12(manifest: Json) -> Json:
    """Return a format 12 manifest in format 13, without changing the argument."""
    entries = {}
    if isinstance(encoding := manifest.get("encoding"), dict):
        added = {"dense_width": 0, "prompts": {}, "default_prompt": "", "pools_prompt": True}
        entries["encoding"] = {**added, **encoding}
    return {**manifest, **entries, "format_version": 13}


def from_13(manifest: Json) -> Json:
    """Return a format 13 manifest in format 14, without changing the argument."""
    entries = {}
    if isinstance(variants := manifest.get("variants"), list):
        entries["variants"] = [_without_window(variant) for variant in variants]
    return {**manifest, **entries, "format_version": 14}


def from_14(manifest: Json) -> Json:
    """Return a format 14 manifest in format 15, without changing the argument."""
    entries = {}
    if isinstance(limits := manifest.get("limits"), dict):
        entries["limits"] = {"source_vocab_size": 0, **limits}
    return {**manifest, **entries, "format_version": 15}


def from_15(manifest: Json) -> Json:
    """Return a format 15 manifest in format 16, without changing the argument."""
    return {"source_language": "", "target_language": "", **manifest, "format_version": 16}


def _without_window(variant: Any) -> Any:
    if not isinstance(variant, dict) or not isinstance(variant.get("states"), list):
        return variant
    states = [{"window": 0, **state} if isinstance(state, dict) else state for state in variant["states"]]
    return {**variant, "states": states}


# By source version.
MIGRATIONS: Mapping[int, Callable[[Json], Json]] = {
    8: from_8,
    9: from_9,
    11: from_11,
    12: from_12,
    13: from_13,
    14: from_14,
    15: from_15,
}


def migrated(manifest: Json, version: int) -> Json:
    """Convert a manifest of an earlier `version`, one of `MIGRATIONS`, to the current format."""
    while version in MIGRATIONS:
        manifest = MIGRATIONS[version](manifest)
        version = manifest["format_version"]
    return manifest


def _renamed(value: Any, path: str) -> Any:
    """Rename keys and values below `path`. An existing new key keeps its position, and the old key stays too."""
    if isinstance(value, list):
        return [_renamed(item, f"{path}.*") for item in value]
    if not isinstance(value, dict):
        return VALUES_OF_8.get(path, {}).get(value, value) if isinstance(value, str) else value
    names = KEYS_OF_8.get(path, {})
    keys = {key: names[key] if key in names and names[key] not in value else key for key in value}
    is_map = path == ".variants.*.graphs"  # its keys are roles
    return {keys[key]: _renamed(item, f"{path}.{'*' if is_map else keys[key]}") for key, item in value.items()}
