import random

import pytest
from sacrebleu.metrics.chrf import CHRF

from service.edge.versions.evaluation import MAX_ATTEMPTS, EvaluationSet, chrf, chrf_of, together
from service.errors import EngineUnavailable, InternalFailure, InvalidRequest, VersionRefused
from tests.edge import LIMITS, FakePool, served

TEXTS = ("the small red house", "the house")
ANSWER = "zwei rote Häuser"  # of the fake pool, to everything


def lines(seed, count=40):
    """Texts of a few words, some of them empty or of a single letter."""
    draw = random.Random(seed)
    words = ("a", "Haus", "häuser", "das", "die", "über", "0", "rot-grün")
    return [" ".join(draw.choices(words, k=draw.randrange(7))) for _ in range(count)]


@pytest.mark.parametrize("seed", range(5))
def test_chrf_is_that_of_sacrebleu(seed):
    answers, references = lines(seed), lines(seed + 100)
    assert chrf(answers, references) == pytest.approx(CHRF().corpus_score(answers, [references]).score, abs=1e-9)
    assert chrf(answers, answers) == pytest.approx(100.0)
    assert chrf(["", ""], ["a b", "c"]) == 0.0
    assert chrf(["x", "y"], ["a b", "c"]) == 0.0


async def test_the_answers_of_a_versions_engines_are_scored():
    pool = FakePool()
    test_set = EvaluationSet(examples=[(TEXTS[0], ANSWER), (TEXTS[1], "etwas anderes")])
    expected = chrf([ANSWER, ANSWER], [ANSWER, "etwas anderes"])
    assert await chrf_of(served("m", pool), test_set, LIMITS) == pytest.approx(expected)
    assert {request.deadline_s for request in pool.requests} == {None}
    assert {request.priority.name for request in pool.requests} == {"LOW"}


async def test_a_refusal_by_full_engines_is_tried_again_but_not_for_ever():
    class FullPool(FakePool):
        """Refuses requests, up to `limit`."""

        refusals = 0

        def submit(self, request, loop, sink):
            self.refusals += 1
            if self.refusals < limit:
                raise EngineUnavailable("none runs", retry_after_s=0.0)
            return super().submit(request, loop, sink)

    test_set = EvaluationSet(examples=[(TEXTS[0], ANSWER)])
    limit, pool = 3, FullPool()
    assert await chrf_of(served("m", pool), test_set, LIMITS) == pytest.approx(100.0)
    assert pool.refusals == 3
    limit, pool = MAX_ATTEMPTS + 10, FullPool()
    with pytest.raises(VersionRefused, match=r"version cdcdcdcdcdcd of model m does not answer example 0 .*none runs"):
        await chrf_of(served("m", pool), test_set, LIMITS)
    assert pool.refusals == MAX_ATTEMPTS


async def test_an_answer_that_fails_refuses_the_version():
    pool = FakePool(answer=(InternalFailure("r"),))
    with pytest.raises(VersionRefused, match="does not answer example 0 of the test set: internal error"):
        await chrf_of(served("m", pool), EvaluationSet(examples=[(TEXTS[0], ANSWER)]), LIMITS)


async def test_an_example_that_cannot_be_read_is_named():
    test_set = EvaluationSet(examples=[(TEXTS[0], ANSWER), ("", ANSWER)])
    with pytest.raises(InvalidRequest, match=r"^evaluation\.examples\[1\]\.text: "):
        await chrf_of(served("m", FakePool()), test_set, LIMITS)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"examples": []}, "evaluation.examples: must be 1..10000 examples, got 0"),
        ({"examples": [("a", " ")]}, r"evaluation.examples\[0\].reference: must not be empty"),
        ({"examples": [("a", "b")], "max_loss": -1}, "evaluation.max_loss: must be 0..100 points of chrF, got -1"),
        ({"examples": [("a", "b")], "max_loss": float("nan")}, "evaluation.max_loss: must be 0..100"),
    ],
)
def test_a_test_set_out_of_range_is_refused(changes, problem):
    with pytest.raises(InvalidRequest, match=problem):
        EvaluationSet(**changes).check()


async def test_the_first_failure_ends_the_others():
    pool = FakePool(hold=True)
    waiting = chrf_of(served("m", pool), EvaluationSet(examples=[(TEXTS[0], "a")]), LIMITS)

    async def fail_later():
        await pool.until(lambda: pool.requests)
        raise InternalFailure("r")

    with pytest.raises(InternalFailure):
        await together([waiting, fail_later()])
    assert pool.cancelled == ["evaluation-0"]
