"""The measurements that an engine reports (`EngineMetrics`). Nothing here knows how they are counted or exported."""

from __future__ import annotations

from typing import Any, Protocol


class EngineMetrics(Protocol):
    """Called on the engine's thread, with numbers only, a few times a turn; per request only `admitted`, `first_token`
    and `finished`."""

    def admitted(self, queue_s: float, prompt_tokens: int) -> None:
        """A request of `prompt_tokens` source and prompt tokens was admitted after `queue_s` seconds."""

    def preempted(self, count: int) -> None:
        """So many live requests gave their rows to others in a turn, and wait for new ones."""

    def prefilled(self, seconds: float, tokens: int, padding: int) -> None:
        """The encoder and prefill of a turn took so long, for `tokens` tokens of which `padding` only fill a batch."""

    def looked_up(self, tokens: int, hits: int, reused: int) -> None:
        """The prefix cache was queried for new prompts of `tokens` tokens: `hits` prompts and `reused` tokens hit."""

    def stepped(self, seconds: float, rows: int, steps: int = 1) -> None:
        """`steps` decode steps of `rows` rows took so many seconds each."""

    def speculated(self, drafted: int, accepted: int) -> None:
        """A turn verified `drafted` draft tokens and accepted `accepted` of them."""

    def first_token(self, seconds: float) -> None:
        """A request got its first token so long after its arrival."""

    def next_tokens(self, gap_s: float, rows: int) -> None:
        """`rows` sequences got another token, `gap_s` seconds after their last one."""

    def generated(self, tokens: int) -> None:
        """A turn generated so many tokens."""

    def finished(self, reason: str, wasted_tokens: int) -> None:
        """A request ended. reason: a FinishReason's value, or an error's reason in lower case. wasted_tokens: generated
        for a request that failed or was cancelled."""


class NullMetrics:
    """Ignores everything."""

    def _ignore(self, *numbers: Any, **named: Any) -> None: ...

    admitted = preempted = prefilled = looked_up = stepped = speculated = _ignore
    first_token = next_tokens = generated = finished = _ignore
