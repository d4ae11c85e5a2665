import pytest

from service.errors import Cancelled
from service.request import FinishReason, Request
from service.sequence import Sequence


def sequence(prompt=(1,), max_tokens=3):
    return Sequence(Request(request_id="r", prompt=prompt, max_tokens=max_tokens))


def test_next_input_is_the_prompt_then_the_last_token():
    row = sequence(prompt=(1, 7))
    inputs = [row.next_input]
    assert not row.advance(1, 9, eos_id=2), "the prompt was not read yet"
    inputs.append(row.next_input)
    assert row.advance(1, 8, eos_id=2)
    inputs.append(row.next_input)
    assert inputs == [1, 7, 8]
    assert row.tokens == [8]


def test_a_prefilled_prompt_counts_at_once():
    row = sequence(prompt=(1, 7, 5))
    assert row.advance(3, 9, eos_id=2)
    assert (row.cached, row.tokens, row.next_input) == (3, [9], 9)


@pytest.mark.parametrize(
    ("choices", "reason"),
    [
        ([5, 2], FinishReason.END_OF_SEQUENCE),
        ([5, 6, 7], FinishReason.LENGTH),
        ([5, 6, 2], FinishReason.END_OF_SEQUENCE),
    ],
)
def test_ends_with_the_end_token_or_its_length(choices, reason):
    row = sequence()
    for token in choices:
        assert row.end is None
        row.advance(1, token, eos_id=2)
    assert row.end is reason
    assert row.tokens == choices


def test_the_first_end_counts():
    row = sequence()
    row.finish(Cancelled("gone"))
    row.finish(FinishReason.LENGTH)
    assert isinstance(row.end, Cancelled)


def test_longest_leaves_out_the_last_token():
    assert sequence(prompt=(1, 4), max_tokens=5).longest == 6
