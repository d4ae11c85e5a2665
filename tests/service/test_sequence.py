from service.decoding.search import search_for
from service.errors import Cancelled
from service.request import FinishReason, Request
from service.sequence import Hypothesis, Sequence


def sequence(prompt=(1,), max_tokens=3):
    request = Request(request_id="r", prompt=prompt, max_tokens=max_tokens)
    return Sequence(request, search_for(request, eos_ids=(2,)))


def test_the_next_input_is_the_prompt_then_the_last_token():
    asked = sequence(prompt=(1, 7))
    (hypothesis,) = asked.hypotheses
    inputs = [asked.input_at(0, hypothesis), asked.input_at(1, hypothesis)]
    asked.num_computed = 1
    assert not asked.is_prefilled
    asked.num_computed = 2
    hypothesis.tokens.append(8)
    inputs.append(asked.input_at(2, hypothesis))
    assert inputs == [1, 7, 8]
    assert asked.is_prefilled


def test_the_first_end_counts():
    asked = sequence()
    asked.finish(Cancelled("gone"))
    asked.finish(FinishReason.LENGTH)
    assert isinstance(asked.outcome, Cancelled)


def test_longest_leaves_out_the_last_token():
    assert sequence(prompt=(1, 4), max_tokens=5).max_positions == 6


def test_a_fork_shares_its_past_and_not_its_future():
    hypothesis = Hypothesis(processor_states=("state",))
    hypothesis.tokens, hypothesis.logprobs, hypothesis.score, hypothesis.row = [5], [-1.0], -1.0, 3
    twin = hypothesis.fork()
    twin.tokens.append(6)
    twin.logprobs.append(-2.0)
    assert (hypothesis.tokens, hypothesis.logprobs) == ([5], [-1.0])
    assert (twin.processor_states, twin.score, twin.row) == (("state",), -1.0, 3)
