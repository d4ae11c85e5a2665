"""Every place of a kept manifest of all roles, with what its annotation allows."""

import dataclasses
import json
import types
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from export.bundle.manifest import Manifest
from export.bundle.manifest_fields import Json
from export.bundle.manifest_migration import migrated
from tests.calibrated import WITH_ADEQUACY

KEPT = Path(__file__).parents[2] / "bundles/format-9/bundle/manifest.json"
TEXT = KEPT.read_text(encoding="utf-8")


def the_manifest():
    """A manifest with graphs of every role, two precisions, a shortlist, a context and a calibration, as values of
    today's format."""
    manifest = {**migrated(json.loads(TEXT), 9), "context": {"sentences": 2, "separator": 4}}
    return {**manifest, "calibrations": {"fp32": json.loads(json.dumps(dataclasses.asdict(WITH_ADEQUACY)))}}


def leaves(kind, value, path=()):
    """Every place of a manifest with what its annotation allows: its path, its plain type and its bounds."""
    bounds: tuple[Any, ...] = ()
    if get_origin(kind) is Annotated:
        kind, bounds = kind.__origin__, kind.__metadata__
    origin, arguments = get_origin(kind), get_args(kind)
    yield path, kind, bounds
    if dataclasses.is_dataclass(kind):
        for name, hint in get_type_hints(kind, include_extras=True).items():
            yield from leaves(hint, value[name], (*path, name))
    elif origin in (types.UnionType, Union):
        for argument in arguments:
            plain = argument.__origin__ if get_origin(argument) is Annotated else argument
            if plain is type(value) or (isinstance(value, dict) and dataclasses.is_dataclass(plain)):
                yield from leaves(argument, value, path)
    elif origin is tuple and value:
        yield from leaves(arguments[0], value[-1], (*path, len(value) - 1))
    elif origin is dict and value and not any(isinstance(bound, Json) for bound in bounds):
        name = next(iter(value))
        yield from leaves(arguments[1], value[name], (*path, name))


LEAVES = list(leaves(Manifest, the_manifest()))
SCALARS = [(path, kind, bounds) for path, kind, bounds in LEAVES if kind in (int, float, str, bool)]


def name_of(path):
    return ".".join(map(str, path)) or "manifest"


def with_value(path, value):
    manifest = the_manifest()
    place = manifest
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return manifest
