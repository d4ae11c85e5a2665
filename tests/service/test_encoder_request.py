import math
from typing import Any

import numpy as np
import pytest

from service.encoder_request import EncoderOutput, EncoderRequest, most_likely, scaled_to_1


@pytest.mark.parametrize(
    ("fields", "outputs"),
    [
        ({"pooling": "mean"}, {"encoder_states"}),
        ({"pooling": "cls"}, {"encoder_states"}),
        ({"pooling": "max", "normalized": True}, {"encoder_states"}),
        ({"pooling": "last"}, {"encoder_states"}),
        ({"state_positions": (0, 3)}, {"encoder_states"}),
        ({"pooling": "pooler"}, {"pooled"}),
        ({"mask_positions": (3,), "top_k": 5}, {"place_logprobs"}),
        ({"labels": True, "token_weights": True}, {"label_logits", "token_weights"}),
        ({"token_labels": True}, {"token_label_logits"}),
        ({}, set()),
    ],
)
def test_a_request_needs_only_the_outputs_it_returns(fields, outputs):
    assert EncoderRequest(**fields).outputs == outputs


def test_a_vector_is_scaled_to_length_1_unless_it_is_zero():
    assert scaled_to_1(np.array([3, 4], np.float32)).tolist() == pytest.approx([0.6, 0.8])
    assert scaled_to_1(np.zeros(2, np.float32)).tolist() == [0, 0]


def test_the_most_likely_tokens_are_ordered_and_ties_go_to_the_lower_id():
    logprobs_NV = np.log(np.array([[0.1, 0.3, 0.1, 0.3, 0.2], [0.2, 0.2, 0.2, 0.2, 0.2]]))
    first, second = most_likely(logprobs_NV, 4)
    assert [token for token, _ in first] == [1, 3, 4, 0]
    assert [token for token, _ in second] == [0, 1, 2, 3]
    assert [math.exp(logprob) for _, logprob in first] == pytest.approx([0.3, 0.3, 0.2, 0.1])


def test_at_most_the_vocabulary_is_returned():
    (filling,) = most_likely(np.log(np.array([[0.25, 0.75]])), 100)
    assert [token for token, _ in filling] == [1, 0]


@pytest.mark.parametrize("top_k", [1, 3, 64])
def test_the_most_likely_tokens_are_those_of_a_stable_sort(top_k):
    logprobs_NV = np.round(np.random.default_rng(top_k).normal(0, 1, (8, 50)), 1)  # rounded: many ties
    for row, filling in zip(logprobs_NV, most_likely(logprobs_NV, top_k), strict=True):
        assert [token for token, _ in filling] == np.argsort(-row, kind="stable")[:top_k].tolist()


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["vector", "label_logits", "token_weights", "states", "token_label_logits"])
def test_an_output_with_a_number_that_is_not_finite_is_recognised(name, broken):
    for numbers, is_finite in (([0.5, 0.25], True), ([0.5, broken], False)):
        fields: dict[str, Any] = {name: np.array(numbers, np.float32)}
        assert EncoderOutput(**fields).is_finite == is_finite


def test_mask_predictions_are_checked_too():
    assert EncoderOutput().is_finite
    assert EncoderOutput(mask_predictions=(((5, -0.5),),)).is_finite
    assert not EncoderOutput(mask_predictions=(((5, -0.5), (6, math.nan)),)).is_finite
    assert not EncoderOutput(mask_predictions=most_likely(np.array([[0.5, math.nan]]), 2)).is_finite
