import dataclasses

import pytest

from export.bundle.manifest import Encoding
from service.edge.requests.encoder_request_builder import MAX_SPANS
from service.edge.requests.request_builder import RequestBuilder
from service.edge.requests.request_limits import MAX_RESPONSE_BYTES, answer_size, states_size
from service.encoder_request import EncoderRequest
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


PROMPTS = {"query": "the small ", "none": ""}


def embedder(limit=8, **own):
    given = manifest(encoding=Encoding(width=4, prompts=PROMPTS, **own))
    given = dataclasses.replace(given, limits=dataclasses.replace(given.limits, max_source_len=limit))
    return dataclasses.replace(TRANSLATION, manifest=given)


def embedded(text, served, **how):
    return RequestBuilder(served, LIMITS, *CALL).embedding(text, **how)


@pytest.mark.parametrize(
    ("default", "name", "text"),
    [
        ("", None, "red house"),
        ("", "query", "the small red house"),
        ("query", None, "the small red house"),
        ("query", "", "red house"),
        ("query", "none", "red house"),
    ],
)
def test_a_prompt_stands_before_the_text(default, name, text):
    request, is_truncated = embedded("red house", embedder(default_prompt=default), prompt_name=name)
    assert request.source == embedded(text, embedder()).request.source
    assert not is_truncated


def test_a_prompt_that_a_model_lacks_is_refused_with_those_it_has():
    with pytest.raises(InvalidRequest, match="prompt_name: must be one of query, none, got 'passage'"):
        embedded("the house", embedder(), prompt_name="passage")
    with pytest.raises(InvalidRequest, match=r"prompt_name: must be left out: model .* has no prompts, got 'query'"):
        embedded("the house", TRANSLATION, prompt_name="query")


def test_a_prompt_may_be_left_out_of_the_pooling():
    served = embedder(pools_prompt=False, dense_width=2)
    own, _ = embedded("red house", served, prompt_name="query")
    assert own.encoder_request == EncoderRequest(pooling="mean", pooled_from=2, has_dense=True)
    plain, _ = embedded("red house", served)
    assert plain.encoder_request == EncoderRequest(pooling="mean", has_dense=True)
    named, _ = embedded("red house", served, prompt_name="query", pooling="max")
    assert named.encoder_request == EncoderRequest(pooling="max")


def test_a_text_is_refused_or_truncated_where_the_model_ends():
    served = embedder(limit=4)
    whole = embedded("the small red", served, truncate=True)
    assert (len(whole.request.source), whole.is_truncated) == (4, False)
    with pytest.raises(InvalidRequest, match=r"text: must be at most 4 tokens, got 5; .*, or set truncate"):
        embedded("the small red house", served)
    cut = embedded("the small red house", served, truncate=True)
    assert cut == (whole.request, True)
    assert embedded("red house", served, truncate=True, prompt_name="query") == cut
    with pytest.raises(InvalidRequest, match=r"prompt_name: .* has 2 tokens, and with 1 special ones leaves none of 3"):
        embedded("red house", embedder(limit=3), truncate=True, prompt_name="query")


def test_only_unknown_words_that_are_left_in_are_refused():
    served = embedder(limit=3)
    assert embedded("the small zebra", served, truncate=True).is_truncated
    with pytest.raises(InvalidRequest, match=r"text: .*zebra"):
        embedded("the zebra small", served, truncate=True)


def test_a_bundle_without_a_description_of_its_states_gives_their_mean():
    request = RequestBuilder(TRANSLATION, LIMITS, *CALL).embedding("the house").request.encoder_request
    assert request is not None
    assert request.pooling == "mean"
