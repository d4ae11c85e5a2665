"""Beam search through the scheduler and a scripted runner, against a version written from the definition alone."""

import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from service.decoding.beam import extend_common_prefix
from service.decoding.lexical_constraints import LexicalConstraints
from service.engine.scheduler import Scheduler
from service.errors import Unsatisfiable
from service.request import FinishReason
from service.sequence import Hypothesis, Sequence
from tests.engines import engine_limits
from tests.fakes import EOS, ScriptedRunner, brackets, doubtful, drain, search_of
from tests.fakes import decoding_request as request

VOCABULARY = 12


def weary(source, fed, vocab_size):
    """`doubtful`, but the end is always among the likeliest tokens, and some others are much likelier than the rest."""
    logits_V = 2 * doubtful(source, fed, vocab_size)
    logits_V[EOS] = np.sort(logits_V)[-1 - len(fed) % 2]
    return (logits_V - np.log(np.exp(logits_V).sum(dtype=np.float64))).astype(np.float32)


def by_definition(asked, rule=doubtful):
    """(tokens, normalised score) of every answer, best first: no rows, no caches, every prefix read anew."""
    options, groups, wanted = asked.options, asked.options.num_beam_groups, asked.options.num_hypotheses
    width = options.beam_size // groups
    places = max(1, round(width * options.patience))

    def norm(length):
        base = length if options.length_normalization == "average" else (5 + length) / 6
        return base**options.length_penalty

    lives: list[Any] = [[((), 0.0)] for _ in range(groups)]
    pools: list[Any] = [[] for _ in range(groups)]
    done = [False] * groups
    for length in range(1, asked.max_tokens + 1):
        taken: list[int] = []
        for group in range(groups):
            if done[group]:
                continue
            found: list[tuple[float, int, int]] = []
            for rank, (tokens, score) in enumerate(lives[group]):
                logprobs_V = rule(asked.source, (*asked.prompt, *tokens), VOCABULARY)
                allowed: Any = range(VOCABULARY)
                if len(tokens) < len(asked.prefix):
                    allowed = [asked.prefix[len(tokens)]]
                for token in allowed:
                    total = score + float(logprobs_V[token]) - options.diversity_penalty * taken.count(token)
                    found.append((-total, rank, token))
            found.sort()
            going: list[Any] = []
            for place, (negated, rank, token) in enumerate(found[: 2 * width]):
                tokens = (*lives[group][rank][0], token)
                if token == EOS or length == asked.max_tokens:
                    if place < width:
                        pools[group].append((tokens, -negated / norm(length)))
                elif len(going) < width:
                    going.append((tokens, -negated))
            pools[group] = sorted(pools[group], key=lambda answer: -answer[1])[:places]
            lives[group] = going
            if length > len(asked.prefix):
                taken += [tokens[-1] for tokens, _ in going]
            if not going:
                done[group] = True
            elif len(pools[group]) == places:
                longest = options.early_stopping == "never" and options.length_penalty > 0
                best = going[0][1] / norm(asked.max_tokens if longest else length)
                done[group] = options.early_stopping == "true" or best <= pools[group][-1][1]
        if all(done):
            break
    return sorted((answer for pool in pools for answer in pool), key=lambda answer: -answer[1])[:wanted]


def run(*requests, max_rows=64, runner=None):
    """Decodes requests together; checks promises after every turn. Returns sequences and what was agreed, turn by
    turn."""
    runner = runner or ScriptedRunner(vocab_size=VOCABULARY, rule=doubtful)
    scheduler = Scheduler(engine_limits(max_rows=max_rows), runner.limits, runner.layout)
    sequences = [Sequence(asked, search_of(asked)) for asked in requests]
    for sequence in sequences:
        scheduler.capacity.check(sequence.request)
        scheduler.submit(sequence)
    agreed: dict[Sequence, list[tuple[int, ...]]] = {sequence: [()] for sequence in sequences}

    def note(plan):
        for sequence in plan.live:
            assert tuple(sequence.committed_tokens[: len(agreed[sequence][-1])]) == agreed[sequence][-1], "taken back"
            agreed[sequence].append(tuple(sequence.committed_tokens))

    drain(scheduler, runner, on_turn=note)
    return sequences, agreed


def answers(sequence):
    return [(tuple(answer.tokens), answer.normalised) for answer in sequence.answers]


def assert_same(sequence, expected):
    assert [tokens for tokens, _ in answers(sequence)] == [tokens for tokens, _ in expected]
    assert [score for _, score in answers(sequence)] == pytest.approx([score for _, score in expected])


CASES: list[dict[str, Any]] = [
    {"beam_size": 2},
    {"beam_size": 4, "num_hypotheses": 4},
    {"beam_size": 8, "num_hypotheses": 3, "length_penalty": 0.6},
    {"beam_size": 3, "num_hypotheses": 3, "length_normalization": "gnmt", "length_penalty": 1.4},
    {"beam_size": 4, "num_hypotheses": 4, "early_stopping": "false"},
    {"beam_size": 4, "num_hypotheses": 4, "early_stopping": "never", "length_penalty": 2.0},
    {"beam_size": 4, "num_hypotheses": 4, "early_stopping": "never", "length_penalty": 0.0},
    {"beam_size": 4, "num_hypotheses": 4, "patience": 2.0},
    {"beam_size": 4, "patience": 0.3},
    {"beam_size": 4, "num_hypotheses": 4, "num_beam_groups": 2, "diversity_penalty": 0.8},
    {"beam_size": 6, "num_hypotheses": 6, "num_beam_groups": 6, "diversity_penalty": 1.5},
    {"beam_size": 4, "num_hypotheses": 4, "num_beam_groups": 2, "diversity_penalty": 0.8, "patience": 1.3},
    {"beam_size": 4, "num_hypotheses": 4, "num_beam_groups": 4, "diversity_penalty": 0.8, "patience": 1.5},
    {"beam_size": 4, "num_hypotheses": 4, "prefix": (7, 7, 4)},
    {"beam_size": 4, "num_hypotheses": 4, "num_beam_groups": 4, "diversity_penalty": 2.0, "prefix": (7, 7, 4)},
    {"beam_size": 32, "num_hypotheses": 32},
]


@pytest.mark.parametrize("options", CASES, ids=str)
def test_answers_match_an_exhaustive_definition(options):
    requests = [
        request(str(n), source=(n % 9 + 3, n // 9 % 9 + 3, 2), max_tokens=n % 11 + 4, **options) for n in range(30)
    ]
    for sequence in run(*requests)[0]:
        assert_same(sequence, by_definition(sequence.request))


@pytest.mark.parametrize("beam_size", [2, 4, 5])
def test_every_hypothesis_may_end_in_every_step(beam_size):
    """Then all that are looked at matter."""
    requests = [
        request(
            str(n),
            source=(n % 9 + 3, n // 9 % 9 + 3, 2),
            max_tokens=9,
            beam_size=beam_size,
            num_hypotheses=beam_size,
            patience=5.0,
        )
        for n in range(60)
    ]
    for sequence in run(*requests, runner=ScriptedRunner(vocab_size=VOCABULARY, rule=weary))[0]:
        assert_same(sequence, by_definition(sequence.request, weary))


def test_beams_of_all_kinds_are_batched_with_other_strategies():
    rng = random.Random(4)
    requests = []
    for n in range(120):
        options = rng.choice(
            [*CASES, {"token_logprobs": True}, {"token_logprobs": True}, {"num_sequences": 3, "seed": n}]
        )
        requests.append(
            request(str(n), source=(n % 9 + 3, n // 9 % 9 + 3, 2), max_tokens=rng.randrange(4, 20), **options)
        )
    together, _ = run(*requests, max_rows=40)
    for sequence in together:
        if sequence.request.options.beam_size > 1:
            assert_same(sequence, by_definition(sequence.request))
        else:
            ((alone,), _) = run(sequence.request)
            assert answers(alone) == answers(sequence)


def test_streamed_tokens_are_a_prefix_of_the_answer():
    requests = [request(str(n), source=(n % 9 + 3, n // 9 % 9 + 3, 2), max_tokens=20, beam_size=4) for n in range(100)]
    sequences, agreed = run(*requests, max_rows=64)
    early = 0
    for sequence in sequences:
        for certain in agreed[sequence]:
            assert tuple(sequence.answers[0].tokens[: len(certain)]) == certain
        early += len(agreed[sequence][-2])
    assert early > 80, "some tokens are certain before the end"


def test_a_wider_beam_finds_likelier_answers():
    sources = [(n % 9 + 3, n // 9 % 9 + 3, 2) for n in range(60)]
    totals = []
    for beam_size in (1, 2, 4, 8):
        never = {"early_stopping": "never"} if beam_size > 1 else {}
        sequences, _ = run(*(request(str(n), source, beam_size=beam_size, **never) for n, source in enumerate(sources)))
        totals.append(sum(sequence.answers[0].normalised for sequence in sequences))
    assert totals == sorted(totals)


def test_finish_reasons_and_log_probabilities_are_reported():
    ((sequence,), _) = run(request(beam_size=4, num_hypotheses=4, max_tokens=4, top_logprobs=2))
    for answer in sequence.answers:
        ended = answer.tokens[-1] == EOS
        assert answer.reason is (FinishReason.END_OF_SEQUENCE if ended else FinishReason.LENGTH)
        assert len(answer.logprobs) == len(answer.tokens) == len(answer.alternatives)
        assert answer.normalised == pytest.approx(sum(answer.logprobs) / len(answer.tokens))
        for place, token in enumerate(answer.tokens):
            logprobs_V = doubtful(sequence.request.source, (1, *answer.tokens[:place]), VOCABULARY)
            assert answer.logprobs[place] == pytest.approx(float(logprobs_V[token]))
            assert answer.alternatives[place][0][1] == pytest.approx(float(logprobs_V.max()))


def test_copies_read_kept_rows_and_write_rows_that_no_hypothesis_continues():
    """The scripted runner checks what every copy finds; here, that there are few of them."""
    runner = ScriptedRunner(vocab_size=VOCABULARY, rule=doubtful)
    run(*(request(str(n), source=(n + 3, 2), beam_size=4, max_tokens=20) for n in range(8)), runner=runner)
    moved = sum(copy.stop - copy.start for plan in runner.plans for copy in plan.moves.copies)
    whole = sum(copy.stop for plan in runner.plans for copy in plan.moves.copies)
    assert moved < 0.8 * whole, "what two hypotheses have in common is not copied"
    assert max(len(plan.moves.copies) for plan in runner.plans) <= 24


class Forbid:
    """A mask that allows only some tokens."""

    is_mask = True

    def __init__(self, *allowed):
        self.allowed = list(allowed)

    def initial_state(self):
        return ()

    def next_state(self, state, token):
        return (*state, token)

    def applies(self, state, tokens):
        assert tuple(tokens) == state, "a hypothesis's states are its own"
        return True

    def apply(self, scores_V, state, tokens):
        kept = scores_V[self.allowed].copy()
        scores_V[:] = -math.inf
        scores_V[self.allowed] = kept

    def excluded(self, state, tokens):
        return None


def test_masks_leave_the_probability_of_what_they_allow():
    ((sequence,), _) = run(request(beam_size=3, max_tokens=5, logits_processors=(Forbid(5, 6),)))
    (answer,) = sequence.answers
    assert set(answer.tokens) <= {5, 6}
    assert answer.reason is FinishReason.LENGTH
    assert answer.score == pytest.approx(sum(answer.logprobs))


@pytest.mark.parametrize("options", [{}, {"beam_size": 2}, {"seed": 1}])
def test_unsatisfiable_constraints_end_only_their_request(options):
    (stuck, fine), _ = run(request(logits_processors=(Forbid(),), **options), request(**options))
    assert isinstance(stuck.outcome, Unsatisfiable)
    assert isinstance(fine.outcome, FinishReason)


def contains(tokens, run):
    return any(tuple(tokens[at : at + len(run)]) == tuple(run) for at in range(len(tokens) - len(run) + 1))


@pytest.mark.parametrize("beam_size", [2, 4, 8])
def test_phrases_are_in_every_answer(beam_size):
    rng, requests, wanted = random.Random(beam_size), [], {}
    for number in range(40):
        runs = [tuple(rng.randrange(3, VOCABULARY) for _ in range(rng.randrange(1, 4))) for _ in range(number % 3 + 1)]
        max_tokens = sum(map(len, runs)) + rng.randrange(1, 12)
        phrases = LexicalConstraints(
            [(run,) for run in runs], brackets(VOCABULARY, EOS), ordered=False, max_tokens=max_tokens
        )
        asked = request(
            str(number), max_tokens=max_tokens, beam_size=beam_size, num_hypotheses=2, logits_processors=(phrases,)
        )
        requests.append(asked)
        wanted[str(number)] = runs
    for sequence in run(*requests)[0]:
        for answer in sequence.answers:
            assert all(contains(answer.tokens, phrase) for phrase in wanted[sequence.request.request_id])


def test_an_answer_with_its_phrase_ends_however_likely_those_without_are():
    """After token 5 the end is likely; without it there are always two better candidates that have no phrase yet."""

    def distribution(source, fed, vocab_size):
        probable = {EOS: 0.5, 6: 0.499} if 5 in fed else {7: 0.499, 8: 0.499, 5: 1e-3}
        probabilities_V = np.full(vocab_size, 1e-6)
        for token, probability in probable.items():
            probabilities_V[token] = probability
        return np.log(probabilities_V / probabilities_V.sum()).astype(np.float32)

    phrases = LexicalConstraints([((5,),)], brackets(VOCABULARY, EOS), ordered=False, max_tokens=9)
    asked = request(max_tokens=9, beam_size=2, num_hypotheses=2, patience=2.0, logits_processors=(phrases,))
    runner = ScriptedRunner(vocab_size=VOCABULARY, rule=distribution)
    ((sequence,), _) = run(asked, runner=runner)
    assert [len(answer.tokens) for answer in sequence.answers] == [5, 4], (
        "one answer ends in every step from the second on"
    )


def test_a_phrase_finds_a_better_place_than_the_beginning():
    better = 0
    for number in range(30):
        wanted = (3 + number % 7, 3 + number % 5)
        phrases = LexicalConstraints([(wanted,)], brackets(VOCABULARY, EOS), ordered=False, max_tokens=12)
        asked = request(source=(number % 7 + 3, 2), max_tokens=12, beam_size=4, logits_processors=(phrases,))
        ((placed,), _) = run(asked)
        ((forced,), _) = run(replace(asked, logits_processors=(), prefix=wanted))
        better += placed.answers[0].normalised >= forced.answers[0].normalised - 1e-9
    assert better >= 24


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_ten_thousand_streamed_beams_never_retract_a_token(seed):
    """`run` checks after every turn that what was certain stays so."""
    rng = random.Random(seed)
    requests = [
        request(
            str(n),
            source=tuple(rng.randrange(3, VOCABULARY) for _ in range(rng.randrange(1, 20))),
            max_tokens=rng.randrange(4, 24),
            **rng.choice(CASES),
        )
        for n in range(1000)
    ]
    for sequence, certain in run(*requests)[1].items():
        assert certain[-1] == tuple(sequence.answers[0].tokens)


def test_the_common_prefix_is_extended():
    def hypothesis(*tokens):
        made = Hypothesis()
        made.tokens = list(tokens)
        return made

    agreed = [5]
    extend_common_prefix(agreed, [hypothesis(5, 6, 7), hypothesis(5, 6, 8), hypothesis(5, 6)])
    assert agreed == [5, 6]
    extend_common_prefix(agreed, [hypothesis(5, 6)])
    assert agreed == [5, 6]
