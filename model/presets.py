"""Complete configurations under a name (`PRESETS`, from presets.yaml), and those in YAML files (`load_preset`)."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, get_args

import yaml

from model.architecture_config import model_config
from model.config import ConfigError, ModelConfig, TrainConfig, check, unknown_key

Embedded = Literal["", "pairs", "scenes", "copy", "kinds", "entities"]


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A model and its training under one name. `embedded`: the corpus it trains on when no data is given."""

    description: str
    model: ModelConfig
    train: TrainConfig
    embedded: Embedded = ""

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """A preset from a YAML file: `preset: NAME` to start from, and what differs under `model` and `train`.

        Raises ConfigError.
        """
        known = ("preset", "description", "embedded", "model", "train")
        for key in values:
            check(key in known, key, unknown_key(key, known))
        base = find_preset(str(values["preset"])) if "preset" in values else None
        model, train = values.get("model") or {}, values.get("train") or {}
        for name, part in (("model", model), ("train", train)):
            check(isinstance(part, Mapping), name, f"must be a mapping, got {part!r}")
        if {"steps", "minutes"} & set(train) and base is not None:
            train = {"steps": 0, "minutes": 0.0, **train}  # either one replaces the base's
        embedded = values.get("embedded", base.embedded if base else "")
        kinds = get_args(Embedded)
        check(embedded in kinds, "embedded", f"must be one of {', '.join(filter(None, kinds))}, got {embedded!r}")
        return cls(
            description=values.get("description", base.description if base else ""),
            model=base.model.replace(**model) if base else model_config(model),
            train=base.train.replace(**train) if base else TrainConfig.from_json(train),
            embedded=embedded,
        )


def _built_in() -> dict[str, Preset]:
    values = yaml.safe_load(Path(__file__).with_name("presets.yaml").read_text(encoding="utf-8"))
    return {name: Preset.from_json(preset) for name, preset in values.items() if not name.startswith("_")}


PRESETS: Mapping[str, Preset] = _built_in()


def find_preset(name: str) -> Preset:
    """The preset of this name. Raises ConfigError, which suggests the closest name and lists all of them."""
    if name not in PRESETS:
        close = difflib.get_close_matches(name, PRESETS, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        known = f"Presets: {', '.join(PRESETS)}; or give a file that ends in .yaml"
        raise ConfigError("preset", f"unknown preset {name!r}; {hint}{known}")
    return PRESETS[name]


def load_preset(name_or_file: str) -> Preset:
    """A preset by name, or from a YAML file (`Preset.from_json`). Raises ConfigError, OSError."""
    if not name_or_file.endswith((".yaml", ".yml")):
        return find_preset(name_or_file)
    try:
        values = yaml.safe_load(Path(name_or_file).read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ConfigError(name_or_file, f"is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ConfigError(name_or_file, f"must be a mapping with model and train, got {type(values).__name__}")
    return Preset.from_json(values)
