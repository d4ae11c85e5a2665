"""Greedy answers that differ where two choices are nearly equal."""

from unittest import mock

import pytest
import torch

from export.bundle.manifest import Variant
from export.verification import case as case_module
from export.verification.answer_checks import answers, right_answers
from export.verification.case import Case
from export.verification.golden import Answer
from export.verification.inputs import sample_inputs
from export.verification.ort_graphs import OrtGraphs
from model.reference.greedy import greedy
from tests.tiny import tiny_config, tiny_model


@pytest.mark.parametrize(("distance", "is_tie"), [(1e-6, True), (0.05, False)])
def test_either_of_two_nearly_equal_tokens_is_right(distance, is_tie, monkeypatch):
    """Two rows of the output matrix are nearly the same; the answers below take the other one at their last step."""
    model = tiny_model(tiny_config("decoder", tie_embeddings=False))
    prompt = (1, 5, 9)
    best = greedy(model, prompt, max_tokens=1)[0]
    twin = 4 if best != 4 else 5
    with torch.no_grad():
        head = model.decoder.unembedding.weight
        head[twin] = head[best] * (1 - distance)
    variant = Variant(precision="fp32", graphs={}, states=())
    case = Case(mock.Mock(spec=OrtGraphs, variant=variant), model, sample_inputs(model.config))
    case.targets, case.sources = (prompt,), ((),)
    monkeypatch.setattr(case_module, "GREEDY_TOKENS", 1)
    assert greedy(model, prompt, max_tokens=1) == [best]
    monkeypatch.setattr(case_module, "answer_greedily", lambda *_: [Answer((twin,), (0.0,))])
    wrong, note, _ = answers(case)
    assert wrong == (0.0 if is_tie else 1.0)
    assert ("near-ties: " in note) == is_tie
    assert ("wrong choices by: " in note) != is_tie
    assert right_answers(case) == ()
