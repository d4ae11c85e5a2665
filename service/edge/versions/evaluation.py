"""How good a version's answers are: chrF of its greedy answers to a test set, computed by its own engines.

chrF2 (Popović 2015, https://aclanthology.org/W15-3049/) compares characters, so that it needs no tokenizer of words and
fits all languages. The figures are those of sacrebleu's `CHRF` with its defaults.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from service.edge.models.event_stream import EventStream
from service.edge.models.served_model import ServedModel
from service.edge.requests.prompt_encoder import NO_LANGUAGES, LanguagePair
from service.edge.requests.request_builder import RequestBuilder
from service.edge.requests.request_limits import TextLimits
from service.errors import InvalidRequest, RequestError, Retryable, VersionRefused
from service.options import DecodingOptions
from service.request import Caller, Priority, Request

MAX_EXAMPLES = 10_000
MAX_LOSS = 1.0  # points of chrF
ORDERS, BETA = range(1, 7), 2.0
CONCURRENCY = 8  # requests to each version: clients of the one that serves come first
MAX_ATTEMPTS = 100  # for an example that the engines refuse because they are full
EVALUATOR = Caller(priority=Priority.LOW)
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class EvaluationSet:
    """Texts and good answers to them. max_loss: how many points worse than the default a version may be."""

    examples: Sequence[tuple[str, str]]
    languages: LanguagePair = NO_LANGUAGES
    max_loss: float = MAX_LOSS

    def check(self) -> None:
        """Raises InvalidRequest."""
        if not 1 <= len(self.examples) <= MAX_EXAMPLES:
            raise InvalidRequest("evaluation.examples", f"must be 1..{MAX_EXAMPLES} examples, got {len(self.examples)}")
        if not 0 <= self.max_loss <= 100:
            raise InvalidRequest("evaluation.max_loss", f"must be 0..100 points of chrF, got {self.max_loss:g}")
        for number, (_, reference) in enumerate(self.examples):
            if not reference.strip():
                raise InvalidRequest(f"evaluation.examples[{number}].reference", "must not be empty")


async def chrf_of(model: ServedModel, test_set: EvaluationSet, limits: TextLimits) -> float:
    """The chrF of a version's greedy answers, 0..100. limits: those of the server.

    Raises InvalidRequest for an example that the version cannot read, VersionRefused for one that it cannot answer.
    """
    answers = [""] * len(test_set.examples)
    waiting = iter(range(len(answers)))  # shared by all

    async def work() -> None:
        for number in waiting:
            answers[number] = await _answer(model, test_set, limits, number)

    await together(work() for _ in range(min(CONCURRENCY, len(answers))))
    return await asyncio.to_thread(chrf, answers, [reference for _, reference in test_set.examples])


async def together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all; of those that fail the first error, after the others were cancelled."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in work]
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]


async def _answer(model: ServedModel, test_set: EvaluationSet, limits: TextLimits, number: int) -> str:
    builder = RequestBuilder(model, limits, f"evaluation-{number}", 0.0, caller=EVALUATOR)
    try:
        request = builder.decoding(
            test_set.examples[number][0], DecodingOptions(), test_set.languages, is_streamed=False
        )
    except InvalidRequest as error:
        field = f"evaluation.examples[{number}].text" if error.field == "text" else error.field
        raise InvalidRequest(field, error.problem) from None
    request = dataclasses.replace(request, deadline_s=None)
    for _ in range(MAX_ATTEMPTS):
        try:
            return await _text(model, request)
        except RequestError as error:
            problem = error
        if not isinstance(problem, Retryable):
            break
        await asyncio.sleep(problem.retry_after_s)
    raise VersionRefused(
        f"version {model.version} of model {model.name} does not answer example {number} of the test set: {problem}"
    )


async def _text(model: ServedModel, request: Request) -> str:
    events, finished = EventStream(), None
    cancel = model.pool.submit(request, asyncio.get_running_loop(), events)
    try:
        text, _, finished = await events.piece()
    finally:
        if finished is None:
            cancel()
    return text


def chrf(answers: Iterable[str], references: Iterable[str]) -> float:
    """The chrF2 of a corpus, 0..100: of character n-grams without whitespace, 1..6 long."""
    counts = [[0, 0, 0] for _ in ORDERS]  # n-grams of answers, of references, in both
    for answer, reference in zip(answers, references, strict=True):
        for total, found, wanted in zip(counts, _ngrams(answer), _ngrams(reference), strict=True):
            total[0] += found.total() if wanted else 0
            total[1] += wanted.total()
            total[2] += (found & wanted).total()
    usable = [total for total in counts if total[0] and total[1]]
    if not usable:
        return 0.0
    precision = sum(both / answered for answered, _, both in usable) / len(usable)
    recall = sum(both / wanted for _, wanted, both in usable) / len(usable)
    if not precision + recall:
        return 0.0
    return 100 * (1 + BETA**2) * precision * recall / (BETA**2 * precision + recall)


def _ngrams(text: str) -> Iterator[collections.Counter[str]]:
    """The character n-grams of each length."""
    characters = "".join(text.split())
    for order in ORDERS:
        yield collections.Counter(characters[i : i + order] for i in range(len(characters) - order + 1))
