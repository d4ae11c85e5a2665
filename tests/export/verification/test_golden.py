"""The choice of a bundle's golden answer, and golden vectors."""

import pytest
import torch

from export.bundle.directory import load_bundle
from export.bundle.manifest import Golden
from export.verification.golden import RightAnswer, common_golden
from tests.tiny import tiny_encoder


def answered(*outputs, is_sure=True):
    """What one variant answered to the questions 4, 5, …"""
    answers = [
        RightAnswer(Golden(source=(4 + i, 2), prompt=(1,), output=output), is_sure, 0.5)
        for i, output in enumerate(outputs)
        if output
    ]
    return answers


def test_the_golden_answer_is_one_that_all_variants_give():
    golden = common_golden([answered((5, 6, 7, 2), (8, 9, 2)), answered((5, 6, 8, 2), (8, 9, 2))])
    assert golden == Golden(source=(5, 2), prompt=(1,), output=(8, 9, 2))


def test_the_golden_answer_ends_where_variants_begin_to_differ():
    golden = common_golden([answered((5, 6, 7, 2), (8, 9, 2)), answered((5, 6, 8, 2), (9, 2))])
    assert golden == Golden(source=(4, 2), prompt=(1,), output=(5, 6))


def test_a_wrong_answer_of_one_variant_is_not_golden():
    assert common_golden([answered((5, 6, 7, 2), ()), answered((), (8, 9, 2))]) is None


def test_a_clear_short_answer_is_preferred_to_a_rich_one_that_another_processor_might_not_give():
    sure, unsure = answered((), (8, 2)), answered((5, 6, 7, 2), is_sure=False)
    both = [*sure, *unsure]
    golden = common_golden([both, both])
    assert golden is not None
    assert golden.output == (8, 2)


def test_fp32_vectors_are_those_of_pytorch(tiny_encoder_bundles):
    golden = load_bundle(tiny_encoder_bundles["masked"]).golden
    source = torch.tensor([golden.source])
    with torch.inference_mode():
        states = tiny_encoder("masked")(source, torch.tensor([source.shape[1]]))
    assert golden.vectors["fp32"].values == pytest.approx(states[0].mean(0).numpy(), abs=1e-4)
