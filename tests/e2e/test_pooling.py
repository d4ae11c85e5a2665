"""Attention pooling without layers through the whole service, compared with the lectures' formula in numpy."""

import numpy as np
import pytest

from export.export_errors import ExportError
from export.options import ExportOptions
from export.to_onnx import export_model
from glossa.client import Client
from model.presets import PRESETS
from tests.e2e.process import serving
from tests.tiny import TEXTS, tiny_model, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
CONFIG = PRESETS["scene-animals"].model.replace(vocab_size=TOKENIZER.vocab_size, labels=("animal",))


@pytest.mark.slow
def test_answers_are_the_formula_in_float64(exported):
    model = tiny_model(CONFIG)
    words_VM, score_1M, label_1M, bias_1 = (parameter.detach().double().numpy() for parameter in model.parameters())
    with serving(models={"pooling": str(exported(model))}) as server, Client(server.address) as client:
        for text in (*TEXTS, "tree"):
            answer = client.classify(text, token_weights=True)
            x_SM = words_VM[TOKENIZER.encode(text)]
            powers_S = np.exp(np.tanh(x_SM @ score_1M[0]))
            weights_S = powers_S / powers_S.sum()
            logit = label_1M[0] @ (weights_S @ x_SM) + bias_1[0]
            assert [label.label for label in answer.labels] == ["animal"]
            assert answer.labels[0].probability == pytest.approx(1 / (1 + np.exp(-logit)), abs=1e-6)
            assert [token.weight for token in answer.token_weights] == pytest.approx(weights_S, abs=1e-6)
            assert client.embed(text) == pytest.approx(x_SM.mean(0), abs=1e-5)


def test_a_model_without_layers_has_no_attention_graph(tmp_path):
    with pytest.raises(ExportError, match="attention: a model without layers has none but token weights"):
        export_model(tiny_model(CONFIG), TOKENIZER, tmp_path / "bundle", ExportOptions(attention=True))
