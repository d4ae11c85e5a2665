"""Builds the model of a configuration with fresh weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from model.architecture_config import EncoderDecoderConfig
from model.config import Architecture, ModelConfig, check
from model.encoder import Encoder
from model.ensemble import Ensemble
from model.recurrent import Recurrent
from model.transformer import Decoder, EncoderDecoder

SourceModel = EncoderDecoder | Recurrent
"""Models with an encoder and a decoder: `forward(source_BS, lengths_B, target_BT)`."""

GenerativeModel = SourceModel | Decoder
"""Models with a decoder."""

Model = GenerativeModel | Encoder


_MODELS: dict[Architecture, Callable[[Any], Model]] = {
    "encoder_decoder": EncoderDecoder,
    "decoder": Decoder,
    "encoder": Encoder,
    "recurrent": Recurrent,
}


def build(config: ModelConfig) -> Any:
    """A `Model` with fresh weights, drawn from torch's global generator; its class follows from the architecture.

    Raises ConfigError while the size of the vocabulary is unknown.
    """
    check(config.vocab_size > 0, "vocab_size", "must be set from the tokenizer before a model is built, got 0")
    if isinstance(config, EncoderDecoderConfig) and config.ensemble_size > 1:
        return Ensemble(config)
    return _MODELS[config.architecture](config)
