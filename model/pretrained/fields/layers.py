"""Fields of `config.json` that differ from layer to layer → `LayerGroup`s, and the layers without biases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from model.architecture_config import DecoderConfig
from model.config import field_types
from model.config_parts import LayerGroup
from model.pretrained.fields.rotary import FULL, SLIDING
from model.pretrained.files import Fields, Names

DEFAULTS = DecoderConfig(positions="rotary").to_json()


def kinds_of_layers(config: Fields, usual: list[str]) -> list[str]:
    """FULL or SLIDING for each layer. usual: without `layer_types`."""
    kinds = config.get("layer_types", usual)
    if not isinstance(kinds, list) or len(kinds) != len(usual) or any(kind not in (FULL, SLIDING) for kind in kinds):
        raise config.refuse("layer_types", f"covered: {FULL} or {SLIDING} for each of {len(usual)} layers")
    return kinds


def window_of(config: Fields, kind: str, *, usual: int = 0) -> int:
    """The window of a kind of layers, 0: none. usual: where the field is missing; 0: it is required."""
    if kind == FULL:
        return 0
    return usual if usual and "sliding_window" not in config else config.count("sliding_window")


def by_layer(config: Fields, layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The fields of a configuration from those of each layer: it has those of most layers, groups have the others."""
    numbers = dict[tuple[tuple[str, Any], ...], list[int]]()
    for number, layer in enumerate(layers):
        numbers.setdefault(tuple(layer.items()), []).append(number)
    most = max(numbers, key=lambda kind: (("positions", "none") not in kind, len(numbers[kind])))
    first, groups, known = dict(most), list[dict[str, Any]](), field_types(LayerGroup)
    for kind in numbers.keys() - {most}:
        defaults = {name: DEFAULTS[name] for name in first.keys() - dict(kind).keys()}
        changes = {name: value for name, value in {**defaults, **dict(kind)}.items() if first.get(name) != value}
        if other := sorted(changes.keys() - known):
            raise config.refuse("rope_parameters", f"layers may differ in base and linear scaling, not in {other[0]}")
        groups.append({"layers": tuple(numbers[kind]), **changes})
    return {**first, "layer_groups": tuple(sorted(groups, key=lambda group: group["layers"]))}


def unbiased(names: Names, config: Fields, biases: Mapping[str, str]) -> Names:
    """The biases of layers that have none, which are zeros. names: of all layers. biases: fields that say whether
    layers have one, with the pattern (`fnmatch`) of the layers' names; a layer of two patterns needs both."""
    none = [pattern for name, pattern in biases.items() if not config.get(name, False)]
    return {f"{layer}.bias": () for layer in names if any(fnmatchcase(layer, pattern) for pattern in none)}
