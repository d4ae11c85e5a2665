from typing import Any

import pytest

from service.edge.admission.token_quotas import TokenQuotas, most_tokens
from service.errors import Cancelled, EngineUnavailable, InvalidRequest, Overloaded, TokensSpent
from service.options import DecodingOptions
from service.progress import Progress, Timings
from service.request import Finished, FinishReason, TextDelta
from tests.engines import request
from tests.fakes import FakeClock

ASKED = request("r", source=(5, 6, 2), max_tokens=36)  # with its start token 40 in all
END = Finished(FinishReason.LENGTH, prompt_tokens=4, generated_tokens=6)
LOST = EngineUnavailable("its process ended", retry_after_s=0.1)


class Story:
    """A tenant with 100 tokens a minute, and the sinks of its requests."""

    def __init__(self):
        self.clock, self.sinks, self.seen = FakeClock(), [], []
        self.quota: Any = TokenQuotas({"acme": 100}, self.clock).of("acme")

    def submit(self, asked=ASKED):
        def submit(sink):
            self.sinks.append(sink)
            return print

        return self.quota.submit(asked, self.seen.append, submit)


def test_only_tenants_of_the_settings_have_a_quota():
    assert TokenQuotas({"acme": 100}, FakeClock()).of("other") is None


def test_a_minutes_tokens_may_be_used_at_once_and_come_back_at_their_pace():
    story = Story()
    story.submit()
    story.submit()
    assert story.quota.left == 20
    with pytest.raises(TokensSpent, match="tenant 'acme' has fewer of its 100 tokens a minute left") as caught:
        story.submit()
    assert (caught.value.retry_after_s, caught.value.limit) == (12.0, 100)
    story.clock.advance(11.9)
    with pytest.raises(TokensSpent):
        story.submit()
    story.clock.advance(0.2)
    story.submit()
    story.clock.advance(1000)
    assert story.quota.left == 100


@pytest.mark.parametrize(
    ("end", "used"),
    [
        (END, 10),
        (Finished(FinishReason.LENGTH, prompt_tokens=4, generated_tokens=50), 54),
        (LOST, 0),
    ],
)
def test_the_end_of_a_request_settles_what_it_has_used(end, used):
    story = Story()
    story.submit()
    for event in (TextDelta("a", (5,)), end):
        story.sinks[0](event)
    assert story.quota.left == 100 - used
    assert story.seen == [TextDelta("a", (5,)), end]


def test_a_cancelled_request_pays_for_what_it_had_come_to():
    story, gone = Story(), Cancelled("the client cancelled the call")
    gone.progress = Progress("decode", 4, 3, Timings())
    story.submit()
    story.sinks[0](gone)
    assert story.quota.left == 93


def test_a_request_that_no_queue_takes_costs_nothing():
    def refuse(_):
        raise Overloaded("full", retry_after_s=1.0, limit=1)

    story = Story()
    with pytest.raises(Overloaded):
        story.quota.submit(ASKED, print, refuse)
    assert story.quota.left == 100


def test_a_request_larger_than_a_whole_minute_is_invalid():
    story, large = Story(), request("r", source=(5, 6, 2), max_tokens=97)
    assert most_tokens(large) == 101
    message = r"options.max_tokens: .* at most 100 tokens, the quota of tenant 'acme' for a minute, got 101"
    with pytest.raises(InvalidRequest, match=message):
        story.submit(large)
    story.submit(request("r", source=(5, 6, 2), max_tokens=96))


@pytest.mark.parametrize("options", [DecodingOptions(num_hypotheses=3), DecodingOptions(num_sequences=3)])
def test_every_answer_of_a_request_counts(options):
    assert most_tokens(request("r", source=(5, 2), max_tokens=10, options=options)) == 33
