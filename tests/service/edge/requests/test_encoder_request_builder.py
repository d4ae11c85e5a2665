import dataclasses

import pytest

from export.bundle.manifest import Encoding
from service.edge.requests.encoder_request_builder import MAX_SPANS
from service.edge.requests.request_builder import RequestBuilder
from service.edge.requests.request_limits import MAX_RESPONSE_BYTES, answer_size, states_size
from service.errors import InvalidRequest, Unsupported
from tests.edge import CALL, LIMITS, TRANSLATION, manifest


def model(width):
    return dataclasses.replace(TRANSLATION, manifest=manifest(encoding=Encoding(width=width)))


def built(width, text, spans=()):
    return RequestBuilder(model(width), LIMITS, *CALL).token_embedding(text, spans)


def test_all_tokens_or_those_of_the_spans_are_selected():
    assert built(4, "the small red house").encoder_request.state_positions == (0, 1, 2, 3, 4)
    assert built(4, "the small red house", [(4, 5)]).encoder_request.state_positions == (1,)
    assert built(4, "the small red house", [(14, 15), (0, 1)]).encoder_request.state_positions == (0, 3)


def test_the_answer_is_as_large_as_its_vectors():
    request = built(1000, "the small red house", [(0, 9)])
    assert answer_size(model(1000).manifest, request).message - answer_size(
        model(1000).manifest, built(1000, "the", [(0, 1)])
    ).message == states_size(1, 1000)


def test_an_answer_that_no_client_accepts_is_refused():
    width = MAX_RESPONSE_BYTES // (4 * 3)
    assert built(width, "the small", [(0, 9)])
    with pytest.raises(InvalidRequest, match="text: must give at most 3145728 bytes of vectors, 3 tokens of") as caught:
        built(width, "the small")
    assert "name spans with fewer tokens" in str(caught.value)
    with pytest.raises(InvalidRequest, match="spans: must give at most"):
        built(width, "the small red", [(0, 13)])
    with pytest.raises(InvalidRequest, match="spans: must be at most 1024, got 1025"):
        built(4, "the", [(0, 1)] * (MAX_SPANS + 1))


def test_a_bundle_without_a_description_of_its_states_has_none():
    with pytest.raises(Unsupported, match="export it again"):
        RequestBuilder(TRANSLATION, LIMITS, *CALL).token_embedding("the")


@pytest.mark.parametrize(
    ("asked", "own", "expected"),
    [
        (None, {}, ("mean", False)),
        (None, {"pooling": "cls", "normalized": True}, ("cls", True)),
        (None, {"pooling": "last"}, ("last", False)),
        ("mean", {"pooling": "cls", "normalized": True}, ("mean", False)),
        ("max", {}, ("max", False)),
    ],
)
def test_a_vector_is_pooled_as_the_model_was_made_for_unless_a_request_says_otherwise(asked, own, expected):
    served = dataclasses.replace(TRANSLATION, manifest=manifest(encoding=Encoding(width=4, **own)))
    request = RequestBuilder(served, LIMITS, *CALL).embedding("the house", asked).request.encoder_request
    assert request is not None
    assert (request.pooling, request.normalized) == expected


def test_a_bundle_without_a_description_of_its_states_gives_their_mean():
    request = RequestBuilder(TRANSLATION, LIMITS, *CALL).embedding("the house").request.encoder_request
    assert request is not None
    assert request.pooling == "mean"
