"""The selection of attention: kinds, layers, heads and means, and its size before anything is computed."""

import numpy as np
import pytest

from export.bundle.manifest import AttentionMaps
from service.attention_request import TOKEN_BYTES, AttentionChoice, Lengths, computed_bytes
from service.errors import InvalidRequest

SEEN = (
    AttentionMaps(kind="encoder", layers=4, heads=3),
    AttentionMaps(kind="decoder", layers=2, heads=3),
    AttentionMaps(kind="cross", layers=2, heads=3),
)
LENGTHS = Lengths(source=5, target=7)


def weights():
    """Numbers that encode their place: layer.head in each matrix, then the number of the row."""
    made = {}
    for seen in SEEN:
        queries, keys = LENGTHS.of(seen.kind)
        layers, heads, rows = np.ogrid[: seen.layers, : seen.heads, :queries]
        made[seen.kind] = np.repeat((10 * layers + heads + rows / 100)[..., None], keys, -1).astype(np.float32)
    return made


def test_an_empty_selection_means_all():
    choice = AttentionChoice().checked(SEEN, text_only=False)
    assert choice.kinds == ("encoder", "decoder", "cross")
    matrices = list(choice.matrices(weights()))
    assert len(matrices) == (4 + 2 + 2) * 3
    assert [matrix.weights_QK.shape for matrix in matrices[::12]] == [(5, 5), (7, 7)]
    assert matrices[-1].weights_QK.shape == (7, 5)
    assert [(matrix.layer, matrix.head) for matrix in matrices[12:18]] == [
        (1, 1),
        (1, 2),
        (1, 3),
        (2, 1),
        (2, 2),
        (2, 3),
    ]
    assert matrices[4].weights_QK[2] == pytest.approx([11.02] * 5)


def test_kinds_have_the_order_of_the_model_and_text_only_means_the_encoder():
    assert AttentionChoice(kinds=("cross", "encoder")).checked(SEEN, text_only=False).kinds == ("encoder", "cross")
    assert AttentionChoice().checked(SEEN, text_only=True).kinds == ("encoder",)
    assert AttentionChoice().checked(SEEN[1:2], text_only=True).kinds == ("decoder",)


def test_layers_and_heads_are_returned_in_the_requested_order():
    choice = AttentionChoice(kinds=("cross",), layers=(2,), heads=(3, 1)).checked(SEEN, text_only=False)
    first, second = choice.matrices(weights())
    assert (first.layer, first.head, first.weights_QK[0, 0]) == (2, 3, 12)
    assert (second.layer, second.head, second.weights_QK[0, 0]) == (2, 1, 10)


@pytest.mark.parametrize(
    ("means", "places", "values"),
    [
        ({"mean_heads": True}, [(2, 0), (4, 0)], [11, 31]),
        ({"mean_layers": True}, [(0, 1), (0, 3)], [20, 22]),
        ({"mean_layers": True, "mean_heads": True}, [(0, 0)], [21]),
    ],
)
def test_means_are_over_the_selection(means, places, values):
    choice = AttentionChoice(kinds=("encoder",), layers=(2, 4), heads=(1, 3), **means).checked(SEEN, text_only=False)
    matrices = list(choice.matrices(weights()))
    assert [(matrix.layer, matrix.head) for matrix in matrices] == places
    assert [matrix.weights_QK[0, 0] for matrix in matrices] == values


@pytest.mark.parametrize(
    ("fields", "text_only", "message"),
    [
        ({"kinds": ("cross",)}, True, r"kinds\[0\]: must be one of encoder with text_only, got cross"),
        ({"layers": (3,)}, False, r"layers\[0\]: must be 1..2 for decoder, got 3"),
        ({"layers": (0,), "kinds": ("encoder",)}, False, r"layers\[0\]: must be 1..4 for encoder, got 0"),
        ({"heads": (1, 4)}, False, r"heads\[1\]: must be 1..3 for encoder, got 4"),
        ({"heads": (2, 2)}, False, r"heads\[1\]: must not repeat a number, got 2 again"),
    ],
)
def test_selections_outside_the_model_are_rejected(fields, text_only, message):
    with pytest.raises(InvalidRequest, match=message):
        AttentionChoice(**fields).checked(SEEN, text_only=text_only)


@pytest.mark.parametrize(
    "fields",
    [{}, {"kinds": ("decoder",)}, {"layers": (2,)}, {"heads": (1, 3)}, {"mean_heads": True}, {"mean_layers": True}],
)
def test_the_predicted_size_is_that_of_the_matrices(fields):
    choice = AttentionChoice(**fields).checked(SEEN, text_only=False)
    tokens = TOKEN_BYTES * (5 + 7 + 7)
    assert choice.response_bytes(SEEN, LENGTHS) - tokens == sum(m.weights_QK.nbytes for m in choice.matrices(weights()))
    assert computed_bytes(SEEN, LENGTHS) == 2 * sum(array.nbytes for array in weights().values())
