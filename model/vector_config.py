"""What follows the pooling of an encoder's vectors, and what may precede its texts: fields of `EncoderConfig`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from model.config import Config, ConfigError, bounded, check

DenseActivation = Literal["identity", "tanh", "relu", "gelu", "silu", "sigmoid"]

Prompts = tuple[tuple[str, str], ...]
"""Pairs of a name and a text that is put before the text of a request."""

UNFIT = re.compile("[\0\ud800-\udfff]")
MAX_PROMPTS = 256
MAX_PROMPT_CHARACTERS = 4096  # of a name or a text; instructions in use have some hundred


@dataclass(frozen=True, kw_only=True)
class DenseLayer(Config):
    """A linear layer over the vector of a text, and its activation. size: of its output."""

    size: int = bounded(0, 1)
    bias: bool = True
    activation: DenseActivation = "identity"


def dense_layers(value: Any, field: str) -> tuple[DenseLayer, ...]:
    """The layers in JSON values, or in layers. Raises ConfigError."""
    check(isinstance(value, tuple), field, f"must be a list of layers, got {value!r:.80}")
    layers = list[DenseLayer]()
    for place, layer in enumerate(value):
        is_layer = isinstance(layer, dict | DenseLayer)
        check(is_layer, f"{field}[{place}]", f"must be a layer with its size, got {layer!r:.80}")
        try:
            layers.append(DenseLayer.from_json(layer) if isinstance(layer, dict) else layer)
        except ConfigError as error:
            raise ConfigError(f"{field}[{place}].{error.field}", error.problem) from None
    return tuple(layers)


def prompts(value: Any, field: str) -> Prompts:
    """The pairs in JSON values. Raises ConfigError."""
    are_pairs = isinstance(value, tuple) and all(
        isinstance(pair, tuple | list) and [type(part) for part in pair] == [str, str] for pair in value
    )
    check(are_pairs, field, f"must be pairs of a name and a text, got {value!r:.80}")
    check(len(value) <= MAX_PROMPTS, field, f"must be at most {MAX_PROMPTS}, got {len(value)}")
    names = [name for name, _ in value]
    check(len(set(names)) == len(names), field, f"must have different names, got {', '.join(names):.80}")
    for name, text in value:
        is_name = bool(name) and name.isprintable() and len(name) <= MAX_PROMPT_CHARACTERS
        check(is_name, field, f"must have names of 1..{MAX_PROMPT_CHARACTERS} printable characters, got {name!r:.80}")
        is_short = len(text) <= MAX_PROMPT_CHARACTERS and not UNFIT.search(text)
        problem = f"must be at most {MAX_PROMPT_CHARACTERS} characters without U+0000 and surrogates"
        check(is_short, field, f"{problem}, got {name!r} of {len(text)}: {text!r:.40}")
    return tuple((name, text) for name, text in value)
