"""Exported bundles that many tests read; exported once a session, and never to be changed by a test."""

import pytest

from tests.tiny import ENCODERS, TEXTS, tiny_config, tiny_encoder, tiny_model, tiny_tokenizer


@pytest.fixture(scope="session")
def tiny_translation_bundle(tmp_path_factory):
    """Path of a bundle with `encode` and `decode`: d_model 32, 2+2 layers, 64 positions."""
    return _exported(tmp_path_factory, "encoder_decoder")


@pytest.fixture(scope="session")
def tiny_attention_bundle(tmp_path_factory):
    """Path of a bundle of the model of `tiny_translation_bundle`, with `align` beside `encode` and `decode`, and with a
    shortlist that allows a source the words of the sentences its own words are from."""
    pairs = [(text, text) for text in TEXTS]
    return _exported(tmp_path_factory, "encoder_decoder", attention=True, parallel=pairs)


@pytest.fixture(scope="session")
def tiny_generation_bundle(tmp_path_factory):
    """Path of a bundle with `decode` alone: d_model 32, 2 layers, 64 positions."""
    return _exported(tmp_path_factory, "decoder")


@pytest.fixture(scope="session")
def tiny_encoder_bundles(tmp_path_factory):
    """Paths of bundles with `encode` alone, by the name of their model in ENCODERS."""
    from export.to_onnx import export_model

    path, tokenizer = tmp_path_factory.mktemp("bundles"), tiny_tokenizer(with_mask=True)
    for kind in ENCODERS:
        export_model(tiny_encoder(kind), tokenizer, path / kind, texts=TEXTS)
    return {kind: path / kind for kind in ENCODERS}


@pytest.fixture(scope="session")
def tiny_recurrent_bundle(tmp_path_factory):
    """Path of a bundle of a recurrent model with attention and input feeding, with `align` beside `encode` and
    `decode`: LSTM, d_model 32, encoder_dim 48, 2+2 layers, 64 positions."""
    return _exported(tmp_path_factory, "recurrent", attention=True)


def _exported(tmp_path_factory, architecture, **extras):
    from export.to_onnx import export_model  # torch: only for tests that need a bundle

    path = tmp_path_factory.mktemp("bundles") / architecture
    export_model(tiny_model(tiny_config(architecture)), tiny_tokenizer(), path, texts=TEXTS, **extras)
    return path
