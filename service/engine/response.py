"""One request on its way to its client: the text so far, the times, and the events that report both.

The engine's core owns it. It knows tokens, text and readings of a clock, but not how tokens were chosen: it turns
committed tokens into text, and at the end all answers into a `Finished`. It knows no event loops and no sinks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from service.decoding.token_selection import attention_of
from service.engine.detokenizer import Detokenizer
from service.progress import Progress, Stage, Timings
from service.request import AttentionResult, Finished, FinishReason, HypothesisResult, TextDelta
from service.sequence import Hypothesis, Sequence
from service.step import DeferredOutputs, PrefillCost


@dataclass(slots=True, eq=False)
class Response:
    """The text and times of one sequence. Times are seconds on the engine's clock.

    ticket: the caller's number for the request. new_text: makes the detokenizer of one hypothesis.
    """

    ticket: int
    sequence: Sequence
    new_text: Callable[[], Detokenizer]
    arrived_s: float
    admitted_s: float | None = None
    first_s: float | None = None  # end of the first turn with an output for it
    reported_s: float = -math.inf  # of the last delta
    prefill_s: float = 0.0  # of all encoder runs and prefills it was part of
    encoded_s: float | None = None  # end of the encoder run of its first turn
    prefilled_s: float = 0.0  # end of the last prefill it was part of
    _text: Detokenizer = field(init=False)
    _pieces: list[str] = field(default_factory=list)  # texts sent
    _consumed: int = 0  # committed tokens turned into text
    _unsent: list[int] = field(default_factory=list)  # tokens turned into text that is held back

    def __post_init__(self) -> None:
        self._text = self.new_text()

    def prefilled(self, began_s: float, cost: PrefillCost) -> None:
        """Takes in the encoder run and prefill of a turn that it was part of. began_s: when the run began."""
        self.prefill_s += cost.seconds
        self.prefilled_s = began_s + cost.seconds
        if self.encoded_s is None:
            self.encoded_s = began_s + cost.encode_s

    def extend(self, now_s: float, deferred: DeferredOutputs) -> list[TextDelta | Finished]:
        """Consumes the newly committed tokens. []: there is nothing to report yet. Tokens of a draft are reported as if
        they had come one by one."""
        sequence = self.sequence
        new = sequence.committed_tokens[self._consumed :]
        self._consumed += len(new)
        events: list[TextDelta | Finished] = []
        if sequence.draft_tokens and sequence.request.is_streamed:
            for token in new[:-1]:
                events += self._deltas([token])
            new = new[-1:]
        if isinstance(sequence.outcome, FinishReason):
            self._unsent += new
            return [*events, self._finished(sequence.outcome, new, now_s, deferred)]
        if deltas := self._deltas(new):
            self.reported_s = now_s
        return events + deltas

    def progress(self, now_s: float) -> Progress:
        """How far it has come, if it ends now without an answer."""
        request, stage = self.sequence.request, _stage(self)
        times = (self.admitted_s, self.encoded_s, self.prefilled_s if stage == "decode" else None, self.first_s)
        queue_s, encoded_s, prefilled_s, first_s = [
            (now_s if time_s is None else time_s) - self.arrived_s for time_s in times
        ]
        timings = Timings(
            queue_s=queue_s,
            prefill_s=self.prefill_s,
            first_token_s=first_s,
            total_s=now_s - self.arrived_s,
            encoded_s=encoded_s,
            prefilled_s=prefilled_s,
            arrived_s=self.arrived_s,
        )
        return Progress(stage, len(request.source) + len(request.prompt), self.sequence.num_generated, timings)

    def _deltas(self, new: list[int]) -> list[TextDelta | Finished]:
        """The text that is certain after these tokens."""
        self._unsent += new
        text = "".join([self._text.push(token) for token in new])
        if not text:
            return []
        self._pieces.append(text)
        delta = TextDelta(text, tuple(self._unsent))
        self._unsent.clear()
        return [delta]

    def _finished(self, reason: FinishReason, new: list[int], now_s: float, deferred: DeferredOutputs) -> Finished:
        assert self.first_s is not None
        assert self.admitted_s is not None
        timings = Timings(
            queue_s=self.admitted_s - self.arrived_s,
            prefill_s=self.prefill_s,
            first_token_s=self.first_s - self.arrived_s,
            total_s=now_s - self.arrived_s,
            encoded_s=(self.encoded_s or self.admitted_s) - self.arrived_s,
            prefilled_s=(self.prefilled_s or self.admitted_s) - self.arrived_s,
            arrived_s=self.arrived_s,
        )
        text, results, answers = "", list[HypothesisResult](), self.sequence.answers
        if answers:
            text = _end_of_text(self._text, answers[0], new)
            results = [self._result(answers[0], "".join([*self._pieces, text]), deferred)]
        for other in answers[1:]:
            results.append(self._result(other, _end_of_text(self.new_text(), other, other.tokens), deferred))
        request = self.sequence.request
        return Finished(
            reason=reason,
            text=text,
            tokens=tuple(self._unsent),
            prompt_tokens=len(request.source) + len(request.prompt if answers else request.forced_target),
            generated_tokens=sum(len(result.tokens) for result in results),
            timings=timings,
            hypotheses=tuple(results),
            encoder_output=self.sequence.encoder_output,
            attention=self._attention(deferred),
        )

    def _attention(self, deferred: DeferredOutputs) -> AttentionResult | None:
        """Attention of a pass of its own, if requested: over the forced target, or over the prompt and the best answer
        without its last token, which is never an input."""
        request = self.sequence.request
        if not request.attention_kinds:
            return None
        tokens = request.forced_target
        if self.sequence.answers:
            tokens = (*request.prompt, *self.sequence.answers[0].tokens[:-1])
        return AttentionResult(tokens, deferred.attention(request.source, tokens, request.attention_kinds))

    def _result(self, hypothesis: Hypothesis, text: str, deferred: DeferredOutputs) -> HypothesisResult:
        assert hypothesis.reason is not None
        request, attention_LHTS = self.sequence.request, None
        if request.options.alignment != "none":
            attention_LHTS = attention_of(request, hypothesis, self.sequence.rows[0], deferred)
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


def _stage(response: Response) -> Stage:
    """The stage that a response is in. Its encoder run has no end if its first turn failed."""
    if response.admitted_s is None:
        return "queue"
    if response.first_s is not None:
        return "decode" if response.sequence.request.prompt else "encode"
    return "encode" if response.encoded_s is None and response.sequence.request.source else "prefill"


def _end_of_text(text: Detokenizer, hypothesis: Hypothesis, tokens: list[int]) -> str:
    """The text of the last tokens of a finished hypothesis."""
    if hypothesis.reason is FinishReason.END_OF_SEQUENCE:
        tokens = tokens[:-1]
    return "".join([text.push(token) for token in tokens]) + text.flush()
