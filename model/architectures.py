"""The architectures there are, and the way from a configuration to a model with fresh weights."""

from __future__ import annotations

from typing import Any

from model.config import ConfigError, ModelConfig
from model.encoder import Encoder
from model.recurrent import Recurrent
from model.transformer import Decoder, EncoderDecoder

SourceModel = EncoderDecoder | Recurrent
"""What answers a source: `forward(source_BS, lengths_B, target_BT)`."""

GenerativeModel = SourceModel | Decoder
"""What produces tokens, recurrent models among them."""

Model = GenerativeModel | Encoder


def build(config: ModelConfig) -> Any:
    """A `Model` with fresh weights, drawn from torch's global generator. Its class follows from the architecture, so
    whoever asks for one that decodes, or for one that does not, knows what it is."""
    if config.vocab_size == 0:
        raise ConfigError("vocab_size", "must be set from the tokenizer before a model is built, got 0")
    if config.is_recurrent:
        return Recurrent(config)
    if not config.has_decoder:
        return Encoder(config)
    return EncoderDecoder(config) if config.has_encoder else Decoder(config)
