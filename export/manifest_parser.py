"""Strict parser from JSON to a manifest and its shortlist.

The parser guesses nothing: an unknown key, a missing key, a value of the wrong type or a name that no graph has is an
error that names its location. `export.bundle` handles files, `export.manifest_migration` earlier formats. This module
uses the standard library only.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from export.manifest import (
    FILE_NAME,
    MANIFEST,
    SOURCE_LANGUAGE,
    TARGET_LANGUAGE,
    TOKENIZER,
    Limits,
    Manifest,
    Shortlist,
    SpecialTokenTemplate,
    StateKind,
    Variant,
)

MOST = (1 << 31) - 1  # of a number that clients receive
SCHEME_NAME = re.compile(r"[a-z0-9-]{1,24}")
# Of a kind of state: the graphs that write and read it, and the prefixes of its name there.
ENDS: Mapping[StateKind, tuple[str, str, str, str]] = {
    "self_kv": ("decode", "decode", "present.", "past."),
    "recurrent": ("decode", "decode", "present.", "past."),
    "cross_kv": ("encode", "decode", "", ""),
    "shortlist": ("project_shortlist", "shortlist_logprobs", "", ""),
}


class SchemaError(ValueError):
    """An invalid value in a bundle file: its location and the problem."""


def parse_json(text: bytes) -> dict[str, Any]:
    """Parse one JSON object strictly: no duplicate keys, no NaN. Raises SchemaError."""
    try:
        values = json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:  # bad UTF-8 and overlong integers are ValueErrors too
        raise SchemaError(f"is not JSON ({error})") from None
    if not isinstance(values, dict):
        raise SchemaError(f"is not a JSON object but {type(values).__name__}")
    return values


def parse_manifest(values: dict[str, Any]) -> Manifest:
    """Return the manifest in JSON values of the current format version. Raises SchemaError."""
    manifest: Manifest = _parse(Manifest, values, "")
    _check(manifest)
    return manifest


def parse_shortlist(values: dict[str, Any], vocab_size: int | None = None) -> Shortlist:
    """Return the shortlist in JSON values; if `vocab_size` is given, ids must be below it. Raises SchemaError."""
    limit = 1 << 31 if vocab_size is None else vocab_size

    def ids(value: Any, where: str) -> tuple[int, ...]:
        if not isinstance(value, list) or not all(type(token) is int and 0 <= token < limit for token in value):
            raise SchemaError(f"{where:.80} must be a list of ids of 0..{limit - 1}, got {value!r:.80}")
        return tuple(value)

    if set(values) != {"always", "by_source"} or not isinstance(values["by_source"], dict):
        raise SchemaError(
            f"must have the list always and the object by_source, and no more, got {', '.join(values):.80}"
        )
    by_source = {}
    for name, targets in values["by_source"].items():
        if not re.fullmatch("0|[1-9][0-9]{0,9}", name) or int(name) >= limit:
            raise SchemaError(f"by_source.{name:.80} must be an id of 0..{limit - 1}")
        by_source[int(name)] = ids(targets, f"by_source.{name}")
    return Shortlist(always=ids(values["always"], "always"), by_source=by_source)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key appears twice in one object")
    return result


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _parse(kind: Any, value: Any, where: str) -> Any:
    """Return `value` as the type `kind`: a dataclass, tuple, dict, literal, union or plain type. Raises SchemaError."""
    origin, arguments = get_origin(kind), get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _parse_fields(kind, value, where)
    if origin is tuple and isinstance(value, list):
        return tuple(_parse(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {key: _parse(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if origin in (types.UnionType, Union):
        for argument in arguments:
            if type(value) is argument:
                return value
            if dataclasses.is_dataclass(argument) and isinstance(value, dict):
                return _parse_fields(argument, value, where)
    if origin is Literal and value in arguments:
        return value
    if kind is Any or type(value) is kind:
        return value
    wanted = " or ".join(map(repr, arguments)) if origin is Literal else getattr(kind, "__name__", str(kind))
    raise SchemaError(f"{where} must be {wanted}, got {value!r:.80}")


def _parse_fields(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise SchemaError(f"{where or 'the manifest'} must be an object, got {value!r:.80}")
    hints, prefix = get_type_hints(kind), f"{where}." if where else ""
    for key in value:
        if key not in hints:
            close = difflib.get_close_matches(key, hints, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(sorted(hints))}"
            raise SchemaError(f"{prefix}{key:.80} is an unknown key; {hint}")
    for key in hints:
        if key not in value:
            raise SchemaError(f"{prefix}{key} is missing")
    return kind(**{key: _parse(hints[key], value[key], prefix + key) for key in hints})


def _check(manifest: Manifest) -> None:
    """Check constraints that the types do not express. Raises SchemaError."""
    for name, digest in manifest.files.items():
        if not FILE_NAME.fullmatch(name) or name == MANIFEST:
            raise SchemaError(
                f"files.{name!r:.80} is not a name for a file of a bundle: relative, and .json, .onnx or .data"
            )
        if digest.bytes < 0 or not re.fullmatch("[0-9a-f]{64}", digest.sha256):
            raise SchemaError(f"files.{name} must have a size of at least 0 and 64 lower-case hexadecimal digits")
    graphs = [graph.file for variant in manifest.variants for graph in variant.graphs.values()]
    for name in (TOKENIZER, *graphs, *filter(None, [manifest.shortlist])):
        if name not in manifest.files:
            raise SchemaError(f"files does not list {name!r:.80}")
    limits = manifest.limits
    has_decoder = manifest.task != "encoding"
    positive = ("vocab_size", "max_target_len" if has_decoder else "max_source_len")
    for name, value in dataclasses.asdict(limits).items():
        least = 1 if name in positive else 0
        if value < least:
            raise SchemaError(f"limits.{name} must be at least {least}, got {value}")
    if not has_decoder and limits.max_target_len:
        raise SchemaError(f"limits.max_target_len must be 0 for the task encoding, got {limits.max_target_len}")
    golden = manifest.golden
    tokens = manifest.tokens
    ids = [tokens.pad, tokens.bos, tokens.unk, *tokens.ends, *golden.source, *golden.prompt, *golden.output]
    if not all(0 <= token < limits.vocab_size for token in ids):
        raise SchemaError(f"tokens and golden must hold ids of 0..{limits.vocab_size - 1}")
    if has_decoder:
        if not golden.prompt or not golden.output or bool(golden.source) != bool(limits.max_source_len):
            raise SchemaError("golden must have a prompt, an output, and a source exactly when the model has one")
    elif golden.prompt or golden.output or not golden.source:
        raise SchemaError("golden must have a source, and nothing else but vectors, for the task encoding")
    _check_template(manifest.template, limits)
    if not manifest.variants or len({v.precision for v in manifest.variants}) != len(manifest.variants):
        raise SchemaError("variants must hold at least one, each of its own precision")
    _check_encoding(manifest)
    roles = {"encode"} if limits.max_source_len else set()
    roles |= {"decode", "logprobs"} if has_decoder else set()
    alignment = manifest.alignment
    if alignment is not None:
        roles.add("align")
        has_both = limits.max_source_len and has_decoder
        if not has_both or not 1 <= alignment.default_layer <= alignment.layers or alignment.heads < 1:
            raise SchemaError(
                f"alignment must be of a source, and its default_layer one of its layers, got {alignment}"
            )
    if manifest.shortlist:
        roles |= {"project_shortlist", "shortlist_logprobs"}
        if not (limits.max_source_len and has_decoder):
            raise SchemaError("shortlist must be of a model with a source and a decoder")
    if manifest.attention_maps:
        roles.add("attend")
        _check_attention_maps(manifest)
    for variant in manifest.variants:
        _check_variant(variant, roles)


def _check_template(template: SpecialTokenTemplate, limits: Limits) -> None:
    for code, token in template.languages.items():
        if not code or not 0 <= token < limits.vocab_size:
            raise SchemaError(f"template.languages.{code:.80} must be an id of 0..{limits.vocab_size - 1}, got {token}")
    names = (SOURCE_LANGUAGE, TARGET_LANGUAGE) if template.languages and limits.max_source_len else ()
    for name in ("source_prefix", "source_suffix", "target_prefix"):
        for place, token in enumerate(getattr(template, name)):
            if token not in names and not (isinstance(token, int) and 0 <= token < limits.vocab_size):
                languages = f", or {' or '.join(names)}" if names else ""
                raise SchemaError(
                    f"template.{name}[{place}] must be an id of 0..{limits.vocab_size - 1}{languages}, "
                    f"got {token!r:.80}"
                )
    if limits.max_source_len and limits.max_target_len and not template.target_prefix:
        raise SchemaError("template.target_prefix must hold what the decoder begins from")
    if limits.max_source_len and len(template.source_special_tokens) > limits.max_source_len:
        raise SchemaError(f"template must put at most {limits.max_source_len} tokens around a source")
    if len(template.target_prefix) > limits.max_target_len:
        raise SchemaError(f"template.target_prefix must be at most {limits.max_target_len} tokens")


def _check_attention_maps(manifest: Manifest) -> None:
    kinds = [maps.kind for maps in manifest.attention_maps]
    if len(set(kinds)) != len(kinds) or any(maps.layers < 1 or maps.heads < 1 for maps in manifest.attention_maps):
        raise SchemaError(
            f"attention_maps must hold each kind once, with 1 layer and head or more, got {manifest.attention_maps}"
        )
    for variant in manifest.variants:
        graph = variant.graphs.get("attend")
        if graph is not None and graph.outputs != tuple(f"{kind}_attention" for kind in kinds):
            raise SchemaError(
                f"variants {variant.precision}: attend must return {', '.join(kinds)}, got {graph.outputs}"
            )


def _check_encoding(manifest: Manifest) -> None:
    encoding, golden, words = manifest.encoding, manifest.golden, manifest.limits.vocab_size
    if encoding is None:
        if manifest.task == "encoding":
            raise SchemaError("encoding must describe the outputs of encode, for the task encoding")
        return
    if not 1 <= encoding.width <= MOST:
        raise SchemaError(f"encoding.width must be 1..{MOST}, got {encoding.width}")
    if encoding.mask is not None and not 0 <= encoding.mask < words:
        raise SchemaError(f"encoding.mask must be an id of 0..{words - 1}, got {encoding.mask}")
    if len(set(encoding.labels)) < len(encoding.labels) or not all(encoding.labels):
        raise SchemaError(f"encoding.labels must be different names, got {encoding.labels!r:.80}")
    if manifest.task != "encoding":
        return
    for variant in manifest.variants:
        vector = golden.vectors.get(variant.precision)
        if vector is None or len(vector.values) != encoding.width or vector.tolerance <= 0:
            raise SchemaError(
                f"golden.vectors.{variant.precision} must have {encoding.width} values and a tolerance above 0"
            )


def _check_quantization(variant: Variant, where: str) -> None:
    scheme = variant.quantization
    if scheme is not None and not (0 < scheme.weight_bits <= 32 and 0 <= scheme.block_size <= MOST):
        raise SchemaError(
            f"{where}: quantization must have 1..32 weight bits and a block_size of at least 0, got {scheme}"
        )
    schemes = [figures.scheme for figures in variant.comparison] + ([scheme.scheme] if scheme is not None else [])
    if not all(SCHEME_NAME.fullmatch(scheme) for scheme in schemes):
        raise SchemaError(f"{where}: schemes must be up to 24 lower-case letters, digits and '-', got {schemes!r:.80}")
    if any(not 0 <= figures.evaluation_samples <= MOST for figures in variant.comparison):
        raise SchemaError(f"{where}: comparison must count 0..{MOST} sentences")
    if sum(figures.chosen for figures in variant.comparison) > 1:
        raise SchemaError(f"{where}: comparison must have chosen one scheme at most")


def _check_variant(variant: Variant, roles: set[str]) -> None:
    where = f"variants {variant.precision}"
    _check_quantization(variant, where)
    if set(variant.graphs) != roles or any(role != graph.role for role, graph in variant.graphs.items()):
        raise SchemaError(
            f"{where}: graphs must be exactly {' and '.join(sorted(roles))}, got {', '.join(variant.graphs)}"
        )
    decode = variant.graphs.get("decode")
    if decode is None:
        if variant.states:
            raise SchemaError(f"{where}: states must be empty without decode, got {len(variant.states)}")
        return
    names = {state.name for state in variant.states}
    if "project_shortlist" in roles and not (
        {"word_ids", "word_weight"} <= names and "asked" in decode.inputs and "states" in decode.outputs
    ):
        raise SchemaError(
            f"{where}: with a shortlist there must be states word_ids and word_weight, and decode must read asked and "
            f"write states, got {', '.join(sorted(names))}; {', '.join((*decode.inputs, *decode.outputs))}"
        )
    for state in variant.states:
        if state.stride < 1 or (state.stride > 1 and state.kind != "self_kv"):
            raise SchemaError(
                f"{where}: state {state.name} must have a stride of 1, or more of self_kv: {state.stride}"
            )
        writer, reader, written, read = ENDS[state.kind]
        written, read = written + state.name, read + state.name
        graphs = [variant.graphs.get(role) for role in (writer, reader)]
        if graphs[0] is None or graphs[1] is None or written not in graphs[0].outputs or read not in graphs[1].inputs:
            raise SchemaError(f"{where}: no graph writes {written} or none reads {read}")
        sizes = state.shape[1:]
        if state.kind == "recurrent" and any(isinstance(size, str) for size in sizes):
            raise SchemaError(f"{where}: state {state.name} is recurrent and must have one size, got {state.shape}")
