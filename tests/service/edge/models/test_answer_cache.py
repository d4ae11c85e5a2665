import dataclasses
import itertools
import sys
from typing import Any

import numpy as np
import pytest

from service.edge.models.answer_cache import OF_CALL, AnswerCache, Directives, directives
from service.edge.observability.metrics import Metrics
from service.encoder_request import EncoderOutput
from service.errors import Cancelled, InvalidRequest
from service.options import DecodingOptions
from service.progress import Timings
from service.request import Finished, FinishReason, HypothesisResult, Priority, Request, TextDelta
from service.settings.setting_types import MAX_KEPT_BYTES
from tests.engines import request
from tests.fakes import FakeClock

VERSION = {"model": "m", "version": "v1"}
ASKED = request("r", source=(4, 5, 2), tenant="acme")
END: Any = Finished(
    FinishReason.LENGTH,
    "Häuser",
    (7, 2),
    prompt_tokens=4,
    generated_tokens=3,
    timings=Timings(queue_s=0.5, total_s=1.5),
    hypotheses=(
        HypothesisResult(
            "rote Häuser",
            (6, 7, 2),
            FinishReason.LENGTH,
            -0.1,
            -1 / 3,
            (-0.1, -0.2, 1e-300),
            attention=np.array([[[[0.1, 0.7]]]], np.float32),
        ),
    ),
    encoder_output=EncoderOutput(vector=np.array([0.1, 1e-40], np.float32)),
)


class Kept:
    """A cache with one open version, and its metrics."""

    def __init__(self, limit_bytes=1 << 20, **settings):
        self.metrics, self.clock = Metrics(), FakeClock(100.0)
        self.series = self.metrics.model("m").open("v1").series
        self.cache = AnswerCache(limit_bytes, self.metrics.answer_cache, clock=self.clock, **settings)
        self.answers: Any = self.cache.answers(self.series)

    def keep(self, asked=ASKED, *events, answers=None):
        answers = answers or self.answers
        sink = answers.keeping(answers.key(asked), [].append)
        for event in events or (END,):
            sink(event)

    def find(self, asked=ASKED):
        return self.answers.find(self.answers.key(asked))

    def value(self, name, **labels):
        return self.metrics.registry.get_sample_value(f"glossa_answer_cache_{name}", labels)


def numbered(number, tenant=""):
    return request("r", source=(number, 2), tenant=tenant)


def test_an_answer_comes_back_bit_for_bit_as_one_piece_that_took_no_time():
    kept, seen = Kept(), list[Any]()
    events = (TextDelta("rote ", (6,)), END)
    sink = kept.answers.keeping(kept.answers.key(ASKED), seen.append)
    assert kept.find() is None
    for event in events:
        sink(event)
    kept.clock.advance(12.5)
    found, age_s = kept.find()
    assert (seen, age_s) == ([*events], 12.5)
    assert (found.text, found.tokens, found.timings) == ("rote Häuser", (6, 7, 2), Timings(arrived_s=112.5))
    (mine,), (theirs,) = found.hypotheses, END.hypotheses
    assert vars(dataclasses.replace(mine, attention=None)) == vars(dataclasses.replace(theirs, attention=None))
    assert mine.attention.tobytes() == theirs.attention.tobytes()
    assert found.encoder_output.vector.tobytes() == END.encoder_output.vector.tobytes()
    assert (kept.value("hits_total", **VERSION), kept.value("misses_total", **VERSION)) == (1, 1)


def other_values(field):
    """Values of a field of a request other than that of ASKED."""
    value = getattr(ASKED, field.name)
    if field.name == "options":
        return [DecodingOptions(beam_size=2), DecodingOptions(top_logprobs=2), DecodingOptions(min_tokens=2)]
    if isinstance(value, Priority):
        return [Priority.HIGH]
    if value is None:
        return [9.0]
    if isinstance(value, tuple):
        return [(9,), (9, *value, 9)]
    return [not value] if isinstance(value, bool) else [type(value)(9)]


@pytest.mark.parametrize("field", dataclasses.fields(Request), ids=lambda field: field.name)
def test_every_field_of_a_request_but_those_of_its_call_changes_the_key(field):
    kept = Kept(is_shared=True)
    keys = {kept.answers.key(ASKED)}
    keys |= {kept.answers.key(dataclasses.replace(ASKED, **{field.name: value})) for value in other_values(field)}
    assert len(keys) == (1 if field.name in OF_CALL else 1 + len(other_values(field)))


def test_the_order_of_a_mapping_does_not_change_the_key():
    ways = [dict(pairs) for pairs in itertools.permutations([(3, 0.5), (70_000, 1.0), (5, -1.0)])]
    keys = {Kept().answers.key(dataclasses.replace(ASKED, options=DecodingOptions(logit_bias=one))) for one in ways}
    assert len(keys) == 1


def test_samples_are_kept_with_a_seed_of_the_client_alone():
    answers = Kept().answers
    sampling = DecodingOptions(temperature=0.7)
    assert answers.key(dataclasses.replace(ASKED, options=sampling, seed=5)) is None
    seeds = [dataclasses.replace(ASKED, options=dataclasses.replace(sampling, seed=n), seed=n) for n in (0, 5)]
    assert len({answers.key(one) for one in seeds}) == 2


def test_tenants_get_no_answer_of_each_other_unless_they_share_them():
    kept, other = Kept(), dataclasses.replace(ASKED, tenant="other")
    kept.keep()
    assert kept.find(other) is None
    assert kept.find(dataclasses.replace(ASKED, tenant="")) is None
    assert kept.find() is not None
    shared = Kept(is_shared=True)
    shared.keep()
    assert shared.find(other) is not None


def test_many_tenants_in_one_have_no_answers_kept():
    apart = Kept(keeps_anonymous=False)
    assert apart.answers.key(dataclasses.replace(ASKED, tenant="")) is None
    assert apart.answers.key(ASKED) is not None
    assert Kept(keeps_anonymous=False, is_shared=True).answers.key(dataclasses.replace(ASKED, tenant="")) is not None


def test_an_answer_that_is_computed_anew_takes_the_place_of_the_one_before():
    kept = Kept()
    kept.keep()
    size = kept.cache.bytes
    kept.clock.advance(5.0)
    kept.keep()
    assert (kept.find().age_s, kept.cache.bytes, len(kept.answers.entries)) == (0.0, size, 1)


def test_errors_and_answers_without_an_end_are_not_kept():
    kept = Kept()
    kept.keep(ASKED, TextDelta("rote", (6,)), Cancelled("the client cancelled the call"))
    kept.keep(ASKED, TextDelta("rote", (6,)))
    assert kept.find() is None
    assert kept.cache.bytes == 0


def test_the_least_recently_used_answers_of_all_versions_give_way():
    kept = Kept(MAX_KEPT_BYTES)
    more: Any = kept.cache.answers(kept.series)
    kept.keep(numbered(0))
    size = kept.cache.bytes
    count = MAX_KEPT_BYTES // size
    for number in range(1, count):
        kept.keep(numbered(number), answers=(kept.answers, more)[number % 2])
    assert kept.find(numbered(0)) is not None  # used: 1 is the oldest now, then 2
    for number in range(count, count + 2):
        kept.keep(numbered(number))
    assert more.find(more.key(numbered(1))) is None
    assert kept.find(numbered(2)) is None
    assert kept.find(numbered(0)) is not None
    assert more.find(more.key(numbered(3))) is not None
    assert kept.value("evicted_total") == 2
    assert kept.value("bytes") == kept.cache.bytes == count * size <= MAX_KEPT_BYTES
    assert kept.value("limit_bytes") == MAX_KEPT_BYTES


def test_an_answer_above_the_limit_of_one_is_not_kept():
    kept = Kept(2 * MAX_KEPT_BYTES)
    kept.keep(ASKED, dataclasses.replace(END, text="a" * MAX_KEPT_BYTES))
    large = np.zeros((1, 1, 1, MAX_KEPT_BYTES // 4 + 1), np.float32)
    hypothesis = dataclasses.replace(END.hypotheses[0], attention=large)
    kept.keep(ASKED, dataclasses.replace(END, hypotheses=(hypothesis,)))
    assert (kept.find(), kept.cache.bytes) == (None, 0)
    kept.keep(ASKED, dataclasses.replace(END, text="a" * (MAX_KEPT_BYTES - 2000)))
    assert kept.find() is not None


async def test_a_version_that_is_closed_leaves_nothing_and_keeps_nothing():
    kept = Kept()
    other: Any = kept.cache.answers(kept.series)
    kept.keep()
    kept.keep(ASKED, answers=other)
    late = kept.answers.keeping(kept.answers.key(numbered(3)), [].append)
    for _ in range(2):
        await kept.answers.aclose()
    late(END)
    assert not kept.answers.entries
    assert other.find(other.key(ASKED)) is not None
    await other.aclose()
    assert kept.cache.bytes == 0


def test_the_bytes_that_are_counted_are_those_that_are_there():
    kept = Kept()
    for number in range(3000):
        kept.keep(numbered(number))
    entries = kept.answers.entries
    held = sys.getsizeof(entries) + sum(sum(map(sys.getsizeof, (key, entry, *entry))) for key, entry in entries.items())
    print(f"{held} bytes held, {kept.cache.bytes} counted, {len(entries)} answers")
    assert 0.7 * kept.cache.bytes < held < kept.cache.bytes <= kept.cache.limit_bytes


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("", Directives()),
        ("no-cache", Directives(reads=False)),
        (" No-Store ,", Directives(stores=False)),
        ("no-store,no-cache", Directives(reads=False, stores=False)),
    ],
)
def test_a_call_says_in_https_words_what_it_allows(value, said):
    assert directives(value) == said


def test_an_unknown_word_is_refused():
    with pytest.raises(
        InvalidRequest, match="x-glossa-cache: must be no-cache, no-store, or both with a comma, got 'm"
    ):
        directives("no-cache, max-age=5")
