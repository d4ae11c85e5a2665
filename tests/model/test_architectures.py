import pytest

from model.architecture_config import EncoderDecoderConfig
from model.architectures import build
from model.config import ConfigError


def test_a_model_without_a_vocabulary_is_refused():
    with pytest.raises(ConfigError, match=r"vocab_size: must be set from the tokenizer before a model is built, got 0"):
        build(EncoderDecoderConfig())
