"""One request on its way to its client: the text so far, the times, and the events that tell both.

Belongs to the engine's thread. It knows tokens, text and clocks' readings, but not how tokens were chosen: it turns
those that are certain into text, and at the end all answers.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from service.decoding.token_selection import attention_of
from service.engine.detokenizer import Detokenizer
from service.request import AttentionResult, EventSink, Finished, FinishReason, HypothesisResult, TextDelta, Timings
from service.sequence import Hypothesis, Sequence
from service.step import StepOutput


class Response:
    """What a sequence's tokens have become. Times are seconds on the engine's clock.

    new_text: makes the text of one hypothesis.
    """

    __slots__ = (
        "_new_text",
        "_pieces",
        "_read",
        "_text",
        "_unsent",
        "admitted_s",
        "arrived_s",
        "first_s",
        "join_s",
        "loop",
        "sequence",
        "sink",
    )

    def __init__(
        self,
        sequence: Sequence,
        new_text: Callable[[], Detokenizer],
        loop: asyncio.AbstractEventLoop,
        sink: EventSink,
        arrived_s: float,
    ) -> None:
        self.sequence, self.loop, self.sink = sequence, loop, sink
        self.arrived_s = arrived_s
        self.admitted_s = arrived_s
        self.first_s: float | None = None  # when a turn first said something of it
        self.join_s = 0.0  # how long the encoding or prefill took that this request was part of
        self._new_text, self._text = new_text, new_text()
        self._pieces: list[str] = []  # texts sent
        self._read = 0  # tokens turned into text
        self._unsent: list[int] = []

    @property
    def prompt_tokens(self) -> int:
        return len(self.sequence.request.source) + len(self.sequence.request.prompt)

    def extend(self, now_s: float, output: StepOutput) -> list[TextDelta | Finished]:
        """Takes the tokens that have become certain. []: there is nothing to tell yet. Those of a draft are told as if
        they had come one by one."""
        sequence = self.sequence
        new = sequence.committed_tokens[self._read :]
        self._read += len(new)
        events: list[TextDelta | Finished] = []
        if sequence.draft_tokens and sequence.request.is_streamed:
            for token in new[:-1]:
                events += self._told([token])
            new = new[-1:]
        if isinstance(sequence.outcome, FinishReason):
            self._unsent += new
            return [*events, self._finished(sequence.outcome, new, now_s, output)]
        return events + self._told(new)

    def _told(self, new: list[int]) -> list[TextDelta | Finished]:
        """What can be told when these tokens have come."""
        self._unsent += new
        text = "".join([self._text.push(token) for token in new])
        if not text:
            return []
        self._pieces.append(text)
        delta = TextDelta(text, tuple(self._unsent))
        self._unsent.clear()
        return [delta]

    def _finished(self, reason: FinishReason, new: list[int], now_s: float, output: StepOutput) -> Finished:
        assert self.first_s is not None
        timings = Timings(
            queue_s=self.admitted_s - self.arrived_s,
            prefill_s=self.join_s,
            first_token_s=self.first_s - self.arrived_s,
            total_s=now_s - self.arrived_s,
        )
        if self.sequence.encoder_output is not None:
            encoded, count = self.sequence.encoder_output, len(self.sequence.request.source)
            return Finished(
                reason, prompt_tokens=count, timings=timings, encoder_output=encoded, attention=self._attention(output)
            )
        if self.sequence.request.forced_target:
            count = len(self.sequence.request.source) + len(self.sequence.request.forced_target)
            return Finished(reason, prompt_tokens=count, timings=timings, attention=self._attention(output))
        best, *others = self.sequence.answers
        text = _end_of_text(self._text, best, new)
        whole = "".join([*self._pieces, text])
        results = [self._result(best, whole, output)]
        results += [
            self._result(other, _end_of_text(self._new_text(), other, other.tokens), output) for other in others
        ]
        return Finished(
            reason=reason,
            text=text,
            tokens=tuple(self._unsent),
            prompt_tokens=self.prompt_tokens,
            generated_tokens=sum(len(result.tokens) for result in results),
            timings=timings,
            hypotheses=tuple(results),
            attention=self._attention(output),
        )

    def _attention(self, output: StepOutput) -> AttentionResult | None:
        """A pass of its own over what was read, if attention is asked for: the last token of an answer is not."""
        request = self.sequence.request
        if not request.attention_kinds:
            return None
        reads = request.forced_target
        if self.sequence.answers:
            reads = (*request.prompt, *self.sequence.answers[0].tokens[:-1])
        return AttentionResult(reads, output.turn.deferred.attention(request.source, reads, request.attention_kinds))

    def _result(self, hypothesis: Hypothesis, text: str, output: StepOutput) -> HypothesisResult:
        assert hypothesis.reason is not None
        request, attention_LHTS = self.sequence.request, None
        if request.options.alignment != "none":
            attention_LHTS = attention_of(request, hypothesis, self.sequence.rows[0], output)
        return HypothesisResult(
            text=text,
            tokens=tuple(hypothesis.tokens),
            reason=hypothesis.reason,
            score=hypothesis.normalised,
            cumulative_logprob=sum(hypothesis.logprobs) if hypothesis.logprobs else math.nan,
            token_logprobs=tuple(hypothesis.logprobs),
            alternatives=tuple(hypothesis.alternatives),
            attention=attention_LHTS,
        )


def _end_of_text(text: Detokenizer, hypothesis: Hypothesis, tokens: list[int]) -> str:
    """The text of the last tokens of a finished hypothesis."""
    if hypothesis.reason is FinishReason.END_OF_SEQUENCE:
        tokens = tokens[:-1]
    return "".join([text.push(token) for token in tokens]) + text.flush()
