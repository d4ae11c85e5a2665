"""Builds the model of a configuration with fresh weights."""

from __future__ import annotations

from typing import Any

from model.architecture_config import DecoderConfig, EncoderConfig, EncoderDecoderConfig, RecurrentConfig
from model.config import ConfigError, ModelConfig
from model.encoder import Encoder
from model.recurrent import Recurrent
from model.transformer import Decoder, EncoderDecoder

SourceModel = EncoderDecoder | Recurrent
"""Models with an encoder and a decoder: `forward(source_BS, lengths_B, target_BT)`."""

GenerativeModel = SourceModel | Decoder
"""Models with a decoder."""

Model = GenerativeModel | Encoder


def build(config: ModelConfig) -> Any:
    """A `Model` with fresh weights, drawn from torch's global generator; its class follows from the configuration's.

    Raises ConfigError while the size of the vocabulary is unknown.
    """
    if config.vocab_size == 0:
        raise ConfigError("vocab_size", "must be set from the tokenizer before a model is built, got 0")
    match config:
        case RecurrentConfig():
            return Recurrent(config)
        case EncoderConfig():
            return Encoder(config)
        case DecoderConfig():
            return Decoder(config)
        case EncoderDecoderConfig():
            return EncoderDecoder(config)
    raise ConfigError("architecture", f"no model is built from a {type(config).__name__}")
