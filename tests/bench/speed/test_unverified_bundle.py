"""Bundles for measurements of speed are whole, and servers open them."""

import pytest

from bench.speed.unverified_bundle import random_tokenizer, save_unverified
from service.engine_process.open_engines import open_engines
from service.settings.engine_settings import EngineSettings
from tests.tiny import tiny_config, tiny_model


@pytest.mark.parametrize(("architecture", "source"), [("encoder_decoder", (5, 6, 2)), ("decoder", ())])
def test_a_server_opens_a_bundle_that_was_not_verified(architecture, source, tmp_path):
    model = tiny_model(tiny_config(architecture))
    save_unverified(tmp_path / "bundle", model, random_tokenizer(model.config.vocab_size), source=source)
    opened = open_engines(tmp_path / "bundle", EngineSettings())
    assert opened.choice.precision == "fp32"
