"""One request on its way to its client: the text so far, the times, and the events that tell both.

Belongs to the engine's thread. It knows tokens, text and clocks' readings, but not why a sequence ended.
"""

from __future__ import annotations

import asyncio

from service.detokenizer import Detokenizer
from service.request import EventSink, Finished, FinishReason, TextDelta, Timings
from service.sequence import Sequence


class Answer:
    """What a sequence's tokens have become. Times are seconds on the engine's clock."""

    __slots__ = ("_text", "_unsent", "admitted_s", "arrived_s", "first_s", "join_s", "loop", "sequence", "sink")

    def __init__(
        self, sequence: Sequence, text: Detokenizer, loop: asyncio.AbstractEventLoop, sink: EventSink, arrived_s: float
    ) -> None:
        self.sequence, self.loop, self.sink = sequence, loop, sink
        self.arrived_s = arrived_s
        self.admitted_s = self.first_s = arrived_s
        self.join_s = 0.0  # how long the encoding or prefill took that this request was part of
        self._text = text
        self._unsent: list[int] = []

    @property
    def prompt_tokens(self) -> int:
        return len(self.sequence.request.source) + len(self.sequence.request.prompt)

    def extend(self, now_s: float) -> TextDelta | Finished | None:
        """Takes the sequence's newest token. None: there is nothing to tell yet. May end the sequence: stop strings."""
        sequence = self.sequence
        token = sequence.tokens[-1]
        self._unsent.append(token)
        text = "" if sequence.end is FinishReason.END_OF_SEQUENCE else self._text.push(token)
        if sequence.end is not None:
            text += self._text.flush()
        if self._text.is_stopped:
            sequence.end = FinishReason.STOP_STRING
        if isinstance(sequence.end, FinishReason):
            return self._finished(sequence.end, text, now_s)
        if not text:
            return None
        delta = TextDelta(text, tuple(self._unsent))
        self._unsent.clear()
        return delta

    def _finished(self, reason: FinishReason, text: str, now_s: float) -> Finished:
        return Finished(
            reason=reason,
            text=text,
            tokens=tuple(self._unsent),
            prompt_tokens=self.prompt_tokens,
            generated_tokens=len(self.sequence.tokens),
            timings=Timings(
                queue_s=self.admitted_s - self.arrived_s,
                prefill_s=self.join_s,
                first_token_s=self.first_s - self.arrived_s,
                total_s=now_s - self.arrived_s,
            ),
        )
