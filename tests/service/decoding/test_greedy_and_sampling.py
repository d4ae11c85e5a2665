"""Hypotheses that choose for themselves, through the scheduler and a scripted runner."""

import math

import numpy as np
import pytest

from service.engine.scheduler import Scheduler
from service.errors import InternalFailure
from service.request import FinishReason
from service.sequence import Sequence
from tests.engines import engine_limits
from tests.fakes import EOS, ScriptedRunner, doubtful, drain, search_of
from tests.fakes import decoding_request as request

VOCABULARY = 16


def run(*requests, rule=doubtful, seen=None, eos_ids=(EOS,)):
    runner = ScriptedRunner(vocab_size=VOCABULARY, rule=rule)
    scheduler = Scheduler(engine_limits(), runner.limits, runner.layout)
    sequences = [Sequence(asked, search_of(asked, eos_ids)) for asked in requests]
    for sequence in sequences:
        scheduler.submit(sequence)

    def note(plan, outputs):
        if seen is not None:
            seen.append((plan.step.shape.rows, scheduler.capacity.reserved.rows))

    drain(scheduler, runner, on_run=note)
    return sequences


def distribution(asked, tokens):
    return doubtful(asked.source, (1, *tokens), VOCABULARY)


def greedily(asked, tokens=()):
    tokens = list(tokens)
    while len(tokens) < asked.max_tokens and EOS not in tokens:
        tokens.append(int(distribution(asked, tokens).argmax()))
    return tokens


def test_greedy_search_selects_the_most_likely_token():
    for n in range(20):
        asked = request(source=(n % 13 + 3, 2), token_logprobs=True)
        (sequence,) = run(asked)
        (answer,) = sequence.answers
        assert answer.tokens == greedily(asked)
        expected = [float(distribution(asked, answer.tokens[:place])[t]) for place, t in enumerate(answer.tokens)]
        assert answer.logprobs == pytest.approx(expected)
        assert answer.normalised == pytest.approx(sum(expected) / len(expected))


@pytest.mark.parametrize("prefix", [(), (7, 8)])
def test_without_scores_the_answer_is_the_same_and_no_distribution_is_read(prefix):
    """The scripted model refuses to return any then."""
    for n in range(20):
        source = (n % 13 + 3, 2)
        (plain,), (scored,) = (
            run(request(source=source, prefix=prefix, **more)) for more in ({}, {"token_logprobs": True})
        )
        assert plain.search.top_k == 0
        assert plain.answers[0].tokens == scored.answers[0].tokens
        assert (plain.answers[0].logprobs, plain.answers[0].reason) == ([], scored.answers[0].reason)
        assert math.isnan(plain.answers[0].score)
        assert math.isnan(plain.answers[0].normalised)


@pytest.mark.parametrize("options", [{}, {"top_logprobs": 2}, {"num_sequences": 2, "temperature": 1.0, "seed": 3}])
def test_any_of_several_tokens_ends_an_answer(options):
    eos_ids, seen = (EOS, 5, 9, 12), set()
    for n in range(20):
        (sequence,) = run(request(source=(n % 13 + 3, 2), **options), eos_ids=eos_ids)
        for answer in sequence.answers:
            assert not {*answer.tokens[:-1]} & {*eos_ids}
            assert (answer.reason == FinishReason.END_OF_SEQUENCE) == (answer.tokens[-1] in eos_ids)
            seen.add(answer.tokens[-1])
    assert len(seen & {*eos_ids}) > 1


def test_a_prefix_is_forced_and_then_continued():
    asked = request(prefix=(7, 8, 9))
    (sequence,) = run(asked)
    assert sequence.answers[0].tokens == greedily(asked, (7, 8, 9))


def test_a_target_is_scored_token_by_token():
    target = (7, 8, 9, EOS)
    asked = request(prefix=target, max_tokens=4, length_penalty=0.5, token_logprobs=True)
    (sequence,) = run(asked)
    (answer,) = sequence.answers
    assert answer.tokens == list(target)
    assert answer.reason is FinishReason.END_OF_SEQUENCE
    expected = [float(distribution(asked, target[:place])[token]) for place, token in enumerate(target)]
    assert answer.logprobs == pytest.approx(expected)
    assert answer.normalised == pytest.approx(sum(expected) / 2)


def test_alternatives_start_with_the_best_tokens_after_the_prefix_and_continue_greedily():
    asked = request(prefix=(7,), num_hypotheses=4, return_alternatives=True)
    (sequence,) = run(asked)
    best = np.argsort(-distribution(asked, (7,)), kind="stable")[:4]
    assert [answer.tokens for answer in sequence.answers] == [greedily(asked, (7, int(token))) for token in best]


def test_unlikely_alternatives_are_omitted_except_the_first():
    asked = request(num_hypotheses=8, return_alternatives=True, min_alternative_probability=0.05)
    (sequence,) = run(asked)
    likely = (np.exp(distribution(asked, ())) >= 0.05).sum()
    assert len(sequence.answers) == min(8, likely)
    (sequence,) = run(request(num_hypotheses=8, return_alternatives=True, min_alternative_probability=0.999))
    assert len(sequence.answers) == 1


def test_samples_of_one_seed_are_the_same_and_differ_from_each_other():
    asked = request(num_sequences=5, seed=7, temperature=2.0)
    (one,), (other,) = run(asked), run(asked)
    tokens = [answer.tokens for answer in one.answers]
    assert tokens == [answer.tokens for answer in other.answers]
    assert len({tuple(answer) for answer in tokens}) >= 4
    assert all(
        answer.logprobs
        == pytest.approx([float(distribution(asked, answer.tokens[:n])[t]) for n, t in enumerate(answer.tokens)])
        for answer in one.answers
    )


def test_the_seed_decides():
    answers = [run(request(temperature=2.0, seed=seed))[0].answers[0].tokens for seed in range(4)]
    assert len(set(map(tuple, answers))) > 1


def test_more_samples_do_not_change_the_first():
    one = run(request(num_sequences=1, temperature=1.5))[0].answers
    three = run(request(num_sequences=3, temperature=1.5))[0].answers
    assert one[0].tokens == three[0].tokens


def test_finished_samples_free_their_rows_at_once():
    seen: list[tuple[int, int]] = []
    (sequence,) = run(request(num_sequences=6, temperature=2.0, max_tokens=30), seen=seen)
    lengths = sorted(len(answer.tokens) for answer in sequence.answers)
    assert lengths[0] < lengths[-1]
    for turn, (rows, reserved) in enumerate(seen[1:], start=1):
        assert rows == reserved == sum(length > turn for length in lengths)


def test_the_most_likely_tokens_of_each_position_are_reported():
    asked = request(top_logprobs=3)
    answer = run(asked)[0].answers[0]
    for place, found in enumerate(answer.alternatives):
        logprobs_V = distribution(asked, answer.tokens[:place])
        assert [token for token, _ in found] == np.argsort(-logprobs_V, kind="stable")[:3].tolist()
        assert found[0][0] == answer.tokens[place]


class Bonus:
    """A rule that is no mask: one token's logit is raised."""

    is_mask = False

    def __init__(self, token, bonus):
        self.token, self.bonus = token, bonus

    def initial_state(self):
        return None

    def next_state(self, state, token):
        return None

    def applies(self, state, tokens):
        return True

    def apply(self, scores_V, state, tokens):
        assert scores_V.max() > 0, "logits, not log-probabilities: the scripted normaliser is 3"
        scores_V[self.token] += self.bonus


def test_a_penalty_changes_the_token_but_not_its_reported_log_probability():
    asked = request(logits_processors=(Bonus(9, 50.0),), max_tokens=3)
    answer = run(asked)[0].answers[0]
    assert answer.tokens == [9, 9, 9]
    assert answer.logprobs == pytest.approx([float(distribution(asked, (9,) * n)[9]) for n in range(3)])
    assert answer.score == pytest.approx(sum(answer.logprobs))
    assert answer.normalised == pytest.approx(sum(answer.logprobs) / 3)


def test_a_defective_processor_fails_only_its_own_request(caplog):
    class Broken(Bonus):
        def apply(self, scores_V, state, tokens):
            raise ZeroDivisionError

    broken, fine = run(request("broken", logits_processors=(Broken(9, 1.0),)), request("fine"))
    assert isinstance(broken.outcome, InternalFailure)
    assert isinstance(fine.outcome, FinishReason)
    assert "request broken: decoding failed" in caplog.text


def test_length_penalties():
    asked = {"length_penalty": 2.0, "max_tokens": 4, "prefix": (5, 6, 7, 8), "token_logprobs": True}
    average = run(request(**asked))[0].answers[0]
    gnmt = run(request(**asked, length_normalization="gnmt"))[0].answers[0]
    assert average.normalised == pytest.approx(sum(average.logprobs) / 4**2)
    assert gnmt.normalised == pytest.approx(sum(gnmt.logprobs) / (9 / 6) ** 2)
    assert math.isclose(average.score, gnmt.score)
