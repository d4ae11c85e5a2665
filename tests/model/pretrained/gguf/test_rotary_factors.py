"""The scaling of Llama 3 is found again in the factors that its parameters give."""

import numpy as np
import pytest

from model.pretrained.files import PretrainedError
from model.pretrained.gguf.rotary_factors import rotary_scaling
from tests.gguf_files import llama3_factors


def rope(theta, factor, low, high, length):
    names = ("rope_theta", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    return dict(zip(names, (theta, factor, low, high, length), strict=True))


@pytest.mark.parametrize(
    ("head_dim", "values"),
    [
        (128, (5e5, 8.0, 1.0, 4.0, 8192)),  # Llama 3.1
        (64, (5e5, 32.0, 1.0, 4.0, 8192)),  # Llama 3.2
        (128, (5e5, 2.0, 1.0, 32.0, 4096)),
        (16, (5e5, 8.0, 1.0, 4.0, 8192)),  # one frequency in between
        (8, (5e5, 8.0, 1.0, 4.0, 800)),  # none in between
    ],
)
def test_parameters_are_found_again(head_dim, values):
    factors, expected = llama3_factors(rope(*values), head_dim), rope(*values)
    found = {**rotary_scaling(factors, values[0], head_dim), "rope_theta": values[0]}
    assert found.pop("rope_type") == "llama3"
    if head_dim > 8:
        assert found == expected
    np.testing.assert_array_equal(llama3_factors(found, head_dim), factors)


def test_only_the_ratio_of_the_bounds_matters():
    values = rope(1e4, 4.0, 2.0, 6.0, 1000)
    found = rotary_scaling(llama3_factors(values, 64), 1e4, 64)
    assert (found["low_freq_factor"], found["high_freq_factor"], found["original_max_position_embeddings"]) == (
        1.0,
        3.0,
        500,
    )


def test_factors_of_1_scale_nothing():
    assert rotary_scaling(np.ones(16, np.float32), 1e4, 32) == {}


@pytest.mark.parametrize(
    "factors",
    [
        np.linspace(1, 8, 16),
        np.linspace(8, 1, 16),
        np.full(16, 0.5),
        np.zeros(16),
        np.where(np.arange(16) < 15, 1, np.inf),
    ],
)
def test_other_factors_are_refused(factors):
    with pytest.raises(PretrainedError, match=r"rope_freqs.weight: is no scaling of Llama 3, got factors \["):
        rotary_scaling(factors.astype(np.float32), 1e4, 32)
