import math
from collections.abc import Callable
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.decoding.logits_processors import LogitBias, LogitsProcessor, MinLength, NoRepeatNGram
from service.decoding.prompt_form import ContextPlace, PromptForm
from service.decoding.token_selection import SPARE, TokenSelector, log_softmax, top_tokens
from service.options import DecodingOptions
from service.request import FinishReason, Request
from tests.fakes import scripted_output

scores = st.lists(st.sampled_from([-math.inf, -3.0, -2.5, -1.0, 0.0, 1.5]), min_size=1, max_size=40)


@given(values=scores, count=st.integers(1, 45))
def test_the_top_tokens_are_those_of_a_stable_sort(values, count):
    expected = sorted((-value, token) for token, value in enumerate(values) if value > -math.inf)[:count]
    assert top_tokens(np.array(values, np.float32), count) == [(token, -value) for value, token in expected]


@given(seed=st.integers(0, 2**32), size=st.integers(1, 700), count=st.integers(1, 12), masked=st.floats(0, 1))
def test_blocks_omit_none_of_the_top_tokens(seed, size, count, masked):
    rng = np.random.default_rng(seed)
    scores_V = rng.integers(-20, 0, size).astype(np.float32)  # many equal ones
    scores_V[rng.random(size) < masked] = -np.inf
    expected = sorted((-score, token) for token, score in enumerate(scores_V.tolist()) if score > -math.inf)[:count]
    assert top_tokens(scores_V, count) == [(token, -score) for score, token in expected]


def test_log_softmax_keeps_what_is_masked_and_adds_up_to_one():
    result = log_softmax(np.array([1.0, -math.inf, 3.0, 2.0], np.float32))
    assert result[1] == -math.inf
    assert np.exp(result.astype(np.float64)).sum() == pytest.approx(1.0)
    assert result[2] - result[0] == pytest.approx(2.0)
    assert np.isfinite(log_softmax(np.array([1e4, -1e4, 0.0], np.float32))).all()


def test_additional_tokens_follow_the_best():
    logprobs_RV = log_softmax(np.arange(8, dtype=np.float32))[None]
    output = scripted_output(logprobs_RV, [(5, 2)], 2).predictions
    selector = TokenSelector(Request(request_id="r", prompt=(1,), max_tokens=5), eos_ids=(2,), stops=None)
    hypothesis = selector.start()
    hypothesis.row = 0
    assert [token for token, _ in selector.best_tokens(hypothesis, output, 2)] == [7, 6]
    found = selector.best_tokens(hypothesis, output, 2, also=(6, 3, 0))
    assert [token for token, _ in found] == [7, 6, 0, 3]
    assert dict(found)[3] == pytest.approx(float(logprobs_RV[0, 3]))


MASKS: dict[str, Callable[[], tuple[LogitsProcessor, ...]]] = {
    "min_tokens": lambda: (MinLength((2, 3), before=5),),
    "no_repeat_ngram_size": lambda: (NoRepeatNGram(2),),
    "both": lambda: (MinLength((2, 3), before=5), NoRepeatNGram(1)),
}


@pytest.mark.parametrize("ranked", [3, 8, 12])
@pytest.mark.parametrize("name", MASKS)
@given(seed=st.integers(0, 2**32))
def test_what_the_graph_ranks_gives_the_tokens_of_the_whole_distribution(name, ranked, seed):
    """Twelve tokens, many of them equal. Of three that are ranked some may be excluded: others must be looked up."""
    rng = np.random.default_rng(seed)
    logprobs_RV = log_softmax(rng.integers(-3, 0, 12).astype(np.float32))[None]
    request = Request(request_id="r", prompt=(1,), max_tokens=9)
    selector = TokenSelector(request, eos_ids=(2, 3), stops=None, processors=MASKS[name]())
    hypothesis = selector.start()
    hypothesis.row, hypothesis.tokens = 0, rng.integers(4, 7, rng.integers(0, 7)).tolist()
    scores_V = selector.scores(hypothesis, scripted_output(logprobs_RV, [(5, 2)], ranked).predictions)
    expected = top_tokens(logprobs_RV[0] if scores_V is None else scores_V, 3)
    assert selector.best_tokens(hypothesis, scripted_output(logprobs_RV, [(5, 2)], ranked).predictions, 3) == expected


def test_masks_that_name_few_tokens_read_no_distribution():
    logprobs_RV = log_softmax(np.arange(12, dtype=np.float32))[None]
    output = scripted_output(logprobs_RV, [(5, 2)], 1 + SPARE).predictions
    request = Request(request_id="r", prompt=(1,), max_tokens=9)
    selector = TokenSelector(request, eos_ids=(11,), stops=None, processors=(MinLength((11,), before=9),))
    assert selector.spare == SPARE
    hypothesis = selector.start()
    hypothesis.row = 0
    with mock.patch.object(type(output), "logprobs", side_effect=AssertionError("a distribution was read")):
        ((token, score),) = selector.best_tokens(hypothesis, output, 1)
        selector.append(hypothesis, token, output, score)
    assert token == 10
    assert hypothesis.logprobs == pytest.approx([float(logprobs_RV[0, 10])])


def test_any_of_several_tokens_ends_an_answer():
    request = Request(request_id="r", prompt=(1,), max_tokens=9)
    selector = TokenSelector(request, eos_ids=(2, 3), stops=None)
    reasons = [selector.finish_reason(selector.start(), token) for token in (2, 3, 4)]
    assert reasons == [FinishReason.END_OF_SEQUENCE, FinishReason.END_OF_SEQUENCE, None]


def test_no_tokens_are_spared_for_penalties():
    processors = (MinLength((2,), before=3), LogitBias({5: 1.0}))
    request = Request(request_id="r", prompt=(1,), max_tokens=9)
    assert TokenSelector(request, eos_ids=(2,), stops=None, processors=processors).spare == 0


def test_coverage_of_a_source_position_is_capped_at_one():
    """The scripted attention looks at one source position after another: three positions, five tokens."""
    options = DecodingOptions(beam_size=2, coverage_penalty=0.5)
    selector = TokenSelector(
        Request(request_id="r", prompt=(1,), max_tokens=9, options=options), eos_ids=(2,), stops=None
    )
    output = scripted_output(log_softmax(np.zeros((1, 8), np.float32)), [(5, 6, 2)]).predictions
    hypothesis = selector.start()
    hypothesis.tokens = [5, 5, 5, 5, 5]
    selector.normalise(hypothesis, 0, output.deferred)
    assert hypothesis.normalised == pytest.approx(0.0)
    hypothesis.tokens = [5, 5]
    selector.normalise(hypothesis, 0, output.deferred)
    assert hypothesis.normalised == pytest.approx(0.5 * math.log(1e-10))


def test_sentences_before_the_text_need_no_coverage():
    """The scripted attention of the two answer tokens is at source positions 2 and 3, which follow the separator 9."""
    options = DecodingOptions(beam_size=2, coverage_penalty=0.5)
    asked = Request(request_id="r", source=(5, 9, 6, 2), prompt=(1, 5, 9), max_tokens=9, options=options)
    output = scripted_output(log_softmax(np.zeros((1, 8), np.float32)), [asked.source]).predictions
    for context, uncovered in ((ContextPlace(0, 9), 0), (ContextPlace(1, 9), 1), (None, 2)):
        selector = TokenSelector(asked, eos_ids=(2,), stops=None, form=PromptForm(context=context))
        hypothesis = selector.start()
        hypothesis.tokens = [6, 2]
        selector.normalise(hypothesis, 0, output.deferred)
        assert hypothesis.normalised == pytest.approx(uncovered * 0.5 * math.log(1e-10))
