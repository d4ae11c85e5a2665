import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine.prompt_lookup import LONGEST_PAUSE, MOST_ROWS, PAUSE, DraftProposer, NgramIndex
from service.options import DecodingOptions
from service.sequence import Sequence
from tests.fakes import ProcessedRequest, search_of

PROMPT = (1, 5, 6, 7, 8, 9, 10, 5, 6)  # what followed 5 6 last time was 7 8 9 10


def index_of(tokens):
    index = NgramIndex()
    index.append(tokens)
    return index


# ---- n-grams


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([], ()),
        ([4], ()),
        ([4, 4], ()),
        ([4, 5, 6, 7], ()),
        ([4, 5, 6, 4, 5], (6, 4, 5, 6)),
        ([4, 5, 6, 9, 4, 5, 7, 9, 4, 5], (7, 9, 4, 5)),  # the last place counts
        ([3, 4, 5, 6, 9, 4, 5, 7, 3, 4, 5], (6, 9, 4, 5)),  # trigrams before bigrams
        ([8, 8, 8], (8, 8, 8, 8)),
        ([7, 8, 9, 8, 9], (8, 9, 8, 9)),
    ],
)
def test_a_draft_is_what_followed_the_last_tokens_earlier(tokens, expected):
    assert index_of(tokens).draft(4) == expected


def test_a_draft_is_as_long_as_is_asked_for():
    index = index_of([4, 5, 6, 7, 4, 5])
    assert [index.draft(most) for most in (1, 2, 6)] == [(6,), (6, 7), (6, 7, 4, 5, 6, 7)]


def slowly(tokens, most):
    """The same by comparing all places and extending the tokens themselves."""
    for length in (3, 2):
        for place in range(len(tokens) - 1, length - 1, -1):
            if tokens[place - length : place] == tokens[len(tokens) - length :]:
                known = list(tokens)
                for ahead in range(most):
                    known.append(known[place + ahead])
                return tuple(known[len(tokens) :])
    return ()


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 9), st.integers(0, 40))
def test_an_index_knows_all_places_however_its_tokens_came(tokens, most, cut):
    index = index_of(tokens[:cut])
    index.append(tokens[cut:])
    assert index.draft(most) == slowly(tokens, most)


# ---- when a draft pays


def sequence(prompt=PROMPT, max_tokens=100, tokens=(7,), prefix=(), logits_processors=(), **options):
    """A sequence that has generated `tokens` so far."""
    request = ProcessedRequest(
        request_id="r",
        prompt=prompt,
        max_tokens=max_tokens,
        prefix=prefix,
        logits_processors=logits_processors,
        options=DecodingOptions(**options),
    )
    made = Sequence(request, search_of(request))
    made.hypotheses[0].tokens += tokens
    made.steps = len(tokens)
    return made


def proposer(most=8, step_s=0.010, block_s=0.012):
    made = DraftProposer(most)
    for rows in range(1, MOST_ROWS + 1):
        made.record_step(rows, step_s)
    one = sequence()
    made.propose([one], 1)
    made.record_draft(one, 5, 2, block_s)
    return made


def test_nothing_is_drafted_before_a_step_was_timed():
    one = sequence()
    made = DraftProposer(8)
    assert made.propose([one], 1) == {}
    made.record_step(1, 0.01)
    assert made.propose([one], 1) == {one: (8, 9, 10, 5, 6, 7)}


def test_a_draft_that_pays_is_proposed_and_one_that_does_not_is_skipped():
    one = sequence()
    assert proposer(block_s=0.029).propose([one], 1) == {one: (8, 9, 10, 5, 6, 7)}
    assert proposer(block_s=0.031).propose([one], 1) == {}


def test_every_draft_is_a_pass_of_its_own_so_that_fewer_pay_with_more_rows():
    some = [sequence() for _ in range(MOST_ROWS + 1)]

    def proposed(rows, block_s):
        return len(proposer(block_s=block_s).propose(some[:rows], rows))

    assert [proposed(rows, 0.006) for rows in range(1, MOST_ROWS + 2)] == [1, 2, 3, 4, 0]
    assert [proposed(rows, 0.014) for rows in range(1, MOST_ROWS + 2)] == [1, 2, 0, 0, 0]


def test_a_draft_is_about_twice_as_long_as_what_was_accepted_recently():
    made, one = proposer(most=12), sequence()
    lengths = []
    for accepted in (0, 6, 7, 12, 12, 12):
        lengths.append(len(made.propose([one], 1)[one]))
        made.record_draft(one, 1 + lengths[-1], accepted, 0.005)
    assert lengths == [6, 4, 8, 11, 12, 12]


def test_a_draft_leaves_room_for_the_token_after_it():
    made = proposer()
    for left, expected in ((1, 0), (2, 1), (3, 2), (20, 6)):
        one = sequence(max_tokens=1 + left)
        assert len(made.propose([one], 1).get(one, ())) == expected


class Nothing:
    """A logits processor, whatever it does."""

    is_mask = True

    def initial_state(self):
        return None


@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 2},
        {"temperature": 0.7},
        {"num_sequences": 2},
        {"num_hypotheses": 2, "return_alternatives": True},
        {"logits_processors": (Nothing(),)},
        {"prefix": (7, 8)},
    ],
)
def test_only_greedy_requests_without_processors_get_drafts(options):
    assert proposer().propose([sequence(**options)], 1) == {}


def test_a_request_gets_drafts_once_its_prefix_is_written():
    one = sequence(prefix=(7,))
    assert list(proposer().propose([one], 1)) == [one]


def test_drafts_that_do_not_pay_are_tried_ever_more_rarely_until_they_do():
    made, one = proposer(block_s=0.050), sequence()
    tried, block_s, places = [], 0.050, range(4 * PAUSE * 8)
    for place in places:
        if made.propose([one], 1):
            tried.append(place)
            made.record_draft(one, 7, 0, block_s)
    gaps = [later - earlier - 1 for earlier, later in itertools.pairwise(tried)]
    assert tried[0] == PAUSE
    assert gaps == [2 * PAUSE, 4 * PAUSE, 8 * PAUSE, 16 * PAUSE]
    while not made.propose([one], 1):
        pass
    made.record_draft(one, 7, 6, 0.011)
    assert made.propose([one], 1), "now it does"
    for _ in range(9):
        made.record_draft(one, 7, 0, 0.011)
    assert [bool(made.propose([one], 1)) for _ in range(PAUSE + 1)] == [False] * PAUSE + [True]


def test_pauses_have_a_limit():
    made, one = proposer(block_s=9.0), sequence()
    for _ in range(12):
        waited = 0
        while not made.propose([one], 1):
            waited += 1
        made.record_draft(one, 7, 0, 9.0)
    assert waited == LONGEST_PAUSE


def test_a_time_that_was_long_by_chance_is_forgotten():
    made, one = proposer(block_s=9.0), sequence()
    while not made.propose([one], 1):
        pass
    made.record_draft(one, 7, 6, 0.011)
    assert made.propose([one], 1)


def test_a_sequence_that_is_gone_is_forgotten():
    made, one, other = proposer(), sequence(), sequence()
    lengths = []
    for stepping in ([one], [one, other], [other], [one]):
        lengths.append(len(made.propose(stepping, 1).get(one, ())))
        if one in stepping:
            made.record_draft(one, 7, 6, 0.005)
    assert lengths == [6, 8, 0, 6], "as long as the first draft of a new sequence"
