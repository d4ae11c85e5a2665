"""Complete configurations under a name (`PRESETS`), and configurations read from a YAML file (`load_preset`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, get_args

import yaml

from model.architecture_config import DecoderConfig, EncoderConfig, EncoderDecoderConfig, RecurrentConfig, model_config
from model.config import ConfigError, ModelConfig, TrainConfig, unknown_key

Embedded = Literal["", "pairs", "scenes", "copy", "kinds"]


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
            if key not in known:
                raise ConfigError(key, unknown_key(key, known))
        base = find_preset(str(values["preset"])) if "preset" in values else None
        model, train = values.get("model") or {}, values.get("train") or {}
        for name, part in (("model", model), ("train", train)):
            if not isinstance(part, Mapping):
                raise ConfigError(name, f"must be a mapping, got {part!r}")
        if {"steps", "minutes"} & set(train) and base is not None:
            train = {"steps": 0, "minutes": 0.0, **train}  # either one replaces the base's
        embedded = values.get("embedded", base.embedded if base else "")
        if embedded not in get_args(Embedded):
            raise ConfigError(
                "embedded", f"must be one of {', '.join(filter(None, get_args(Embedded)))}, got {embedded!r}"
            )
        return cls(
            description=values.get("description", base.description if base else ""),
            model=base.model.replace(**model) if base else model_config(model),
            train=base.train.replace(**train) if base else TrainConfig.from_json(train),
            embedded=embedded,
        )


def _closed_vocabulary(**changes: Any) -> TrainConfig:
    """Training on an embedded corpus, whose words are all known."""
    shared = {
        "tokenizer": "words",
        "vocab_size": 4000,
        "batch_tokens": 2048,
        "learning_rate": 4e-3,
        "warmup_steps": 200,
        "label_smoothing": 0.0,
        "average_checkpoints": 3,
        "save_every_steps": 100,
        "validation_size": 500,
    }
    return TrainConfig(**{**shared, **changes})


def _copying(**changes: Any) -> TrainConfig:
    """Training on the copy task."""
    return _closed_vocabulary(
        vocab_size=64,
        batch_tokens=512,
        warmup_steps=10,
        average_checkpoints=1,
        validation_size=100,
        bf16=False,
        **changes,
    )


PRESETS: Mapping[str, Preset] = {
    "demo": Preset(
        description="English to German on the embedded scene grammar: two to four minutes on two cores",
        model=EncoderDecoderConfig(
            d_model=128, d_ff=512, num_encoder_layers=2, num_decoder_layers=2, max_source_len=64, max_target_len=64
        ),
        train=_closed_vocabulary(steps=1000),
        embedded="pairs",
    ),
    "scenes": Preset(
        description="decoder-only, English scenes of the embedded grammar: three minutes on two cores",
        model=DecoderConfig(d_model=128, d_ff=512, num_decoder_layers=3, positions="rotary", max_target_len=128),
        train=_closed_vocabulary(minutes=3),
        embedded="scenes",
    ),
    "tatoeba-small": Preset(
        description="everyday sentences, any pair of languages: 7.6 M parameters, 15 minutes on two cores",
        model=EncoderDecoderConfig(
            d_model=256, d_ff=1024, num_encoder_layers=3, num_decoder_layers=3, max_source_len=128, max_target_len=128
        ),
        train=TrainConfig(
            vocab_size=8000,
            batch_tokens=2048,  # in two or three epochs many small steps learn more than half as many large ones
            minutes=15,
            learning_rate=2e-3,
            warmup_steps=300,  # of about 2,500 steps
            average_checkpoints=4,
            save_every_steps=100,  # so that the average reaches back over little more than the last tenth
            validate_every_steps=250,
        ),
    ),
    "shakespeare": Preset(
        description="decoder-only, one long text: ten minutes on two cores",
        model=DecoderConfig(
            d_model=256, d_ff=1024, num_decoder_layers=4, positions="rotary", dropout=0.1, max_target_len=256
        ),
        train=TrainConfig(
            vocab_size=1024,
            documents="stream",
            batch_tokens=4096,
            minutes=10,
            learning_rate=2e-3,
            warmup_steps=100,
            label_smoothing=0.0,
            save_every_steps=100,
            validate_every_steps=100,
        ),
    ),
    "masked-scenes": Preset(
        description="encoder alone, fills masks in English scenes of the embedded grammar: two minutes on two cores",
        model=EncoderConfig(head="masked", d_model=128, d_ff=512, num_encoder_layers=3, max_source_len=128),
        train=_closed_vocabulary(minutes=2),
        embedded="scenes",
    ),
    "sentence-kinds": Preset(
        description="encoder alone, classifies eight kinds of English sentences by attention pooling: a minute on two "
        "cores",
        model=EncoderConfig(head="attention", d_model=64, d_ff=256, num_encoder_layers=2, max_source_len=64),
        train=_closed_vocabulary(batch_tokens=1024, minutes=1, learning_rate=2e-3, warmup_steps=100),
        embedded="kinds",
    ),
    "tiny-copy": Preset(
        description="copies letters: the whole path in seconds, for tests",
        model=EncoderDecoderConfig(
            d_model=32,
            num_heads=2,
            d_ff=64,
            num_encoder_layers=1,
            num_decoder_layers=1,
            max_source_len=32,
            max_target_len=32,
        ),
        train=_copying(steps=60, learning_rate=5e-3, save_every_steps=30, validate_every_steps=30),
        embedded="copy",
    ),
    "demo-recurrent": Preset(
        description="like demo with an LSTM and attention instead of a Transformer: two minutes on two cores",
        model=RecurrentConfig(
            d_model=128,
            num_encoder_layers=1,
            num_decoder_layers=1,
            input_feeding=True,
            max_source_len=64,
            max_target_len=64,
        ),
        train=_closed_vocabulary(minutes=2, warmup_steps=100),
        embedded="pairs",
    ),
    "tiny-copy-recurrent": Preset(
        description="copies letters with a GRU and attention: the whole path in seconds, for tests",
        model=RecurrentConfig(
            cell="gru",
            score="dot",
            d_model=48,
            num_encoder_layers=1,
            num_decoder_layers=1,
            max_source_len=32,
            max_target_len=32,
        ),
        train=_copying(steps=200, learning_rate=1e-2, validate_every_steps=100),
        embedded="copy",
    ),
}


def find_preset(name: str) -> Preset:
    """The preset of this name. Raises ConfigError, which suggests the closest name and lists all of them."""
    if name not in PRESETS:
        hint = unknown_key(name, PRESETS, noun="preset").removeprefix("unknown preset; ")
        listed = "" if hint.startswith("known") else f" known presets: {', '.join(sorted(PRESETS))}"
        raise ConfigError("preset", f"unknown preset {name!r}; {hint}{listed}")
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
