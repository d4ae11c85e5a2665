"""The limits of a model's inputs, as its manifest states them, its graphs are traced and verification runs them."""

from __future__ import annotations

from export.bundle.manifest import Limits
from model.config import ModelConfig


def limits_of(config: ModelConfig) -> Limits:
    """Return the limits of a model of this configuration."""
    return Limits(
        vocab_size=config.vocab_size,
        source_vocab_size=config.source_vocab_size,
        max_source_len=config.max_source_len if config.has_encoder else 0,
        max_target_len=config.max_target_len if config.has_decoder else 0,
        max_block=0 if config.supports_chunked_prefill else 1,
    )
