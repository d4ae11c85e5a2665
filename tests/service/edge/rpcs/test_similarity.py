"""Measures of similarity against scalar loops in exact arithmetic, and the checks of a request's fields."""

import math
from fractions import Fraction

import numpy as np
import pytest

from glossa.v1 import glossa_pb2 as pb
from service.edge.rpcs.similarity import MAX_ITEMS, MAX_WIDTH, given_vectors, similarities, together
from service.errors import InvalidRequest
from service.progress import Timings
from service.request import Finished, FinishReason

COSINE, DOT, EUCLIDEAN = pb.SIMILARITY_MEASURE_COSINE, pb.SIMILARITY_MEASURE_DOT, pb.SIMILARITY_MEASURE_EUCLIDEAN
RANDOM = np.random.default_rng(1)
ITEMS, OTHERS = (list(RANDOM.normal(size=(rows, 7)).astype(np.float32)) for rows in (3, 2))


def exact(measure, x, y):
    """Of two vectors, in fractions."""
    x, y = ([Fraction(float(value)) for value in values] for values in (x, y))

    def dot(a, b):
        return sum((p * q for p, q in zip(a, b, strict=True)), Fraction(0))

    if measure == DOT:
        return float(dot(x, y))
    if measure == EUCLIDEAN:
        return math.sqrt(sum((p - q) ** 2 for p, q in zip(x, y, strict=True)))
    return float(dot(x, y)) / math.sqrt(dot(x, x) * dot(y, y))


@pytest.mark.parametrize("measure", [COSINE, DOT, EUCLIDEAN])
def test_each_item_is_compared_with_each_of_the_others(measure):
    found = similarities(measure, ITEMS, OTHERS)
    assert found.shape == (3, 2)
    assert found == pytest.approx(np.array([[exact(measure, x, y) for y in OTHERS] for x in ITEMS]), rel=1e-12)
    among = np.array([[exact(measure, x, y) for y in ITEMS] for x in ITEMS])
    assert similarities(measure, ITEMS, []) == pytest.approx(among, rel=1e-12, abs=1e-12)


def test_large_and_small_values_stay_finite():
    largest = float(np.finfo(np.float32).max)
    items = [np.array(values, np.float32) for values in ([largest, largest], [1e-38, 0.0], [0.0, 0.0])]
    found = similarities(COSINE, items, [])
    assert found == pytest.approx(np.array([[1, 0.5**0.5, 0], [0.5**0.5, 1, 0], [0, 0, 0]]), abs=1e-6)
    assert np.isfinite(similarities(EUCLIDEAN, items, [])).all()
    assert np.isfinite(similarities(DOT, items, [])).all()


def test_close_vectors_keep_their_distance():
    near = [np.array([1e4, 1e4 + step], np.float32) for step in (0.0, 0.0009765625)]
    assert similarities(EUCLIDEAN, near, [])[0, 1] == 0.0009765625


def vector(*values):
    return {"vector": pb.Vector(values=values)}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "items: must be 1..32 texts or vectors, got 0"),
        ({"items": [{"text": "a"}] * (MAX_ITEMS + 1)}, "items: must be at most 32 texts or vectors, got 33"),
        ({"items": [{"text": "a"}], "others": [vector(1)] * 33}, "others: must be at most 32 texts or vectors, got 33"),
        ({"items": [{"text": "a"}, {}]}, r"items\[1\]: must have a text or a vector, got neither"),
        ({"items": [vector()]}, r"items\[0\].vector.values: must be 1..8192 values, got 0"),
        ({"items": [vector(*[0.0] * (MAX_WIDTH + 1))]}, "must be 1..8192 values, got 8193"),
        ({"items": [vector(1, math.nan)]}, r"items\[0\].vector.values\[1\]: must be finite, got nan"),
        (
            {"items": [vector(1, 2)], "others": [vector(1)]},
            r"others\[0\].vector.values: must be 2 values, as it",
        ),
        ({"items": [vector(1)], "measure": 9}, "measure: must be one of SIMILARITY_MEASURE_UNSPECIFIED, .*, got 9"),
    ],
)
def test_invalid_fields_are_rejected(fields, message):
    with pytest.raises(InvalidRequest, match=message):
        given_vectors(pb.SimilarityRequest(**fields))


def test_requests_in_a_row_add_up():
    ends = [
        Finished(FinishReason.LENGTH, prompt_tokens=tokens, timings=Timings(queue_s=1.0, total_s=tokens))
        for tokens in (3, 4)
    ]
    whole = together(ends)
    assert (whole.prompt_tokens, whole.timings.queue_s, whole.timings.total_s) == (7, 2.0, 7.0)
