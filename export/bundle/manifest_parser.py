"""Strict parser from JSON to a manifest and its shortlist.

The parser guesses nothing: an unknown key, a missing key, or a value of another type or range than the annotation of
its field is an error that names its location. `export.bundle.manifest_relations` checks how fields depend on each
other, `export.bundle.directory` handles files, `export.bundle.manifest_migration` earlier formats. This module uses the
standard library only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import json
import math
import re
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from export.bundle.manifest import Manifest
from export.bundle.manifest_fields import MAX_DEPTH, MAX_INT, MAX_TEXT, Items, Json, Range, SchemaError, Text, shown
from export.bundle.manifest_relations import check_relations
from export.bundle.target_shortlist import Shortlist

SURROGATES = re.compile("[\ud800-\udfff]")


def parse_json(data: bytes) -> dict[str, Any]:
    """Parse one JSON object strictly: UTF-8 without a byte order mark, no duplicate keys, no number without a finite
    value. Raises SchemaError."""
    try:
        values = json.loads(
            data.decode("utf-8"), object_pairs_hook=_no_duplicates, parse_constant=_finite, parse_float=_finite
        )
    except (ValueError, RecursionError) as error:  # bad UTF-8 and overlong integers are ValueErrors too
        raise SchemaError(f"is not JSON ({error})") from None
    if not isinstance(values, dict):
        raise SchemaError(f"is not a JSON object but {type(values).__name__}")
    return values


def parse_manifest(values: dict[str, Any]) -> Manifest:
    """Return the manifest in JSON values of the current format version. Raises SchemaError."""
    manifest: Manifest = _parse(Manifest, values, "")
    check_relations(manifest)
    return manifest


def parse_shortlist(values: dict[str, Any], vocab_size: int | None = None, *, source_vocab_size: int = 0) -> Shortlist:
    """Return the shortlist in JSON values; if `vocab_size` is given, ids must be below it. source_vocab_size: the same
    of source tokens with ids of their own; 0: they have none. Raises SchemaError."""
    limit = 1 << 31 if vocab_size is None else vocab_size
    most = source_vocab_size or limit

    def ids(value: Any, where: str) -> tuple[int, ...]:
        if not isinstance(value, list) or not all(type(token) is int and 0 <= token < limit for token in value):
            raise SchemaError(f"{where:.80} must be a list of ids of 0..{limit - 1}, got {shown(value)}")
        return tuple(value)

    is_ranked = values.get("is_ranked", True)
    if {*values} - {"is_ranked"} != {"always", "by_source"} or not isinstance(values["by_source"], dict):
        raise SchemaError(
            f"must have the list always and the object by_source, and no more, got {shown(', '.join(values))[1:-1]}"
        )
    if not isinstance(is_ranked, bool):
        raise SchemaError(f"is_ranked must be true or false, got {shown(is_ranked)}")
    by_source = {}
    for name, targets in values["by_source"].items():
        if not re.fullmatch("0|[1-9][0-9]{0,9}", name) or int(name) >= most:
            raise SchemaError(f"{_at('by_source', name)} must be an id of 0..{most - 1}")
        by_source[int(name)] = ids(targets, f"by_source.{name}")
    always = ids(values["always"], "always")
    return Shortlist(always=always, by_source=by_source, is_ranked=is_ranked, copies=not source_vocab_size)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key appears twice in one object")
    return result


def _finite(text: str) -> float:
    """Also called for NaN and Infinity, which JSON does not have."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text:.80} is not a JSON number")
    return number


_hints = functools.cache(functools.partial(get_type_hints, include_extras=True))


def _parse(kind: Any, value: Any, where: str) -> Any:
    """Return `value` as the type `kind`: a dataclass, tuple, dict, literal, union or plain type, each with its bounds.
    Raises SchemaError."""
    plain, bounds = _split(kind)
    origin: Any = get_origin(plain)
    arguments = get_args(plain)
    if dataclasses.is_dataclass(plain):
        return _parse_fields(plain, value, where)
    if origin in (types.UnionType, Union):
        fitting = [argument for argument in arguments if _is_of(argument, value)]
        for argument in fitting:
            with contextlib.suppress(*[SchemaError] if argument is not fitting[-1] else []):
                return _parse(argument, value, where)
    elif _is_of(plain, value) and all(_holds(bound, value) for bound in bounds):
        if known := next((bound.known for bound in bounds if isinstance(bound, Json)), None):
            _check_json(value, where, MAX_DEPTH)
            for key in known.keys() & value.keys():
                _parse(known[key], value[key], _at(where, key))
            return value
        if origin is tuple:
            return tuple(_parse(arguments[0], item, f"{where}[{index}]") for index, item in enumerate(value))
        if origin is dict:
            return {
                _parse(arguments[0], key, f"a key of {where}"): _parse(arguments[1], item, _at(where, key))
                for key, item in value.items()
            }
        if origin is not Literal or value in arguments:
            return value
    raise SchemaError(f"{where} must be {_described(kind)}, got {shown(value)}")


def _split(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    """A type without its annotations, and these."""
    return (kind.__origin__, kind.__metadata__) if get_origin(kind) is Annotated else (kind, ())


def _is_of(kind: Any, value: object) -> bool:
    """Whether a value has the type that `json` gives values of this type: True is no int, and 1 no float."""
    return type(value) is _json_type(kind)


def _json_type(kind: Any) -> type:
    """The type that `json` gives a value of this type."""
    kind, _ = _split(kind)
    origin = get_origin(kind)
    if dataclasses.is_dataclass(kind) or origin is dict:
        return dict
    found: type = {tuple: list, Literal: str}.get(origin, kind)
    return found


def _holds(bound: Range | Text | Items | Json, value: Any) -> bool:
    """Whether a value of the right type is within a bound."""
    match bound:
        case Range(least, most):
            return bool(least <= value <= most)
        case Text(pattern):
            return pattern.fullmatch(value) is not None
        case Items(most, least):
            return bool(least <= len(value) <= most)
    return True


def _described(kind: Any) -> str:
    plain, bounds = _split(kind)
    origin, arguments = get_origin(plain), get_args(plain)
    if origin in (types.UnionType, Union):
        return " or ".join(map(_described, arguments))
    if origin is Literal:
        return " or ".join(map(repr, arguments))
    name = {dict: "an object", list: "a list", types.NoneType: "null"}.get(found := _json_type(plain), found.__name__)
    return " ".join([name, *(str(bound) for bound in bounds if not isinstance(bound, Json))])


def _at(where: str, key: str) -> str:
    return f"{where}.{shown(key)[1:-1]}" if where else shown(key)[1:-1]


def _check_json(value: Any, where: str, depth: int) -> None:
    """Check free JSON values: what a message or a log line could not hold is refused. Raises SchemaError."""
    if depth < 0:
        raise SchemaError(f"{where:.200} must be nested at most {MAX_DEPTH} deep")
    if isinstance(value, str):
        if len(value) > MAX_TEXT or SURROGATES.search(value):
            raise SchemaError(
                f"{where:.200} must be at most {MAX_TEXT} characters without surrogates, got {shown(value)}"
            )
    elif type(value) is int and not -MAX_INT <= value <= MAX_INT:
        raise SchemaError(f"{where:.200} must be int of 64 bits, got {shown(value)}")
    elif isinstance(value, list):
        for item in value:
            _check_json(item, f"{where}[]", depth - 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_json(key, f"a key of {where}", depth - 1)
            _check_json(item, _at(where, key), depth - 1)


def _parse_fields(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise SchemaError(f"{where or 'the manifest'} must be an object, got {shown(value)}")
    hints = _hints(kind)
    for key in value:
        if key not in hints:
            close = difflib.get_close_matches(key[:80], hints, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(sorted(hints))}"
            raise SchemaError(f"{_at(where, key)} is an unknown key; {hint}")
    for key in hints:
        if key not in value:
            raise SchemaError(f"{_at(where, key)} is missing")
    return kind(**{key: _parse(hints[key], value[key], _at(where, key)) for key in hints})
