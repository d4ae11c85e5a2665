"""What an engine reports while it runs (`EngineMetrics`); nothing here knows how it is counted or shown."""

from __future__ import annotations

from typing import Protocol


class EngineMetrics(Protocol):
    """What an engine reports, from its own thread. Calls are few per turn, and none per row but `finished`."""

    def admitted(self, queue_s: float, prompt_tokens: int) -> None:
        """A request got a row after `queue_s`; it brings `prompt_tokens` of source and prompt."""

    def prefilled(self, seconds: float) -> None:
        """One turn's encoding or prefill of new rows."""

    def looked_up(self, tokens: int, *, hits: int, reused: int) -> None:
        """New prompts of `tokens` tokens were looked up among those that were read lately: `hits` of them began like
        one, and `reused` tokens need not be read."""

    def stepped(self, seconds: float, rows: int, steps: int = 1) -> None:
        """`steps` decode steps that took so many seconds each."""

    def speculated(self, drafted: int, accepted: int) -> None:
        """One turn read `drafted` guesses at tokens, of which `accepted` were right."""

    def first_token(self, seconds: float) -> None:
        """From arrival to the first token."""

    def next_tokens(self, gap_s: float, rows: int) -> None:
        """`rows` sequences got one more token, `gap_s` after their last one."""

    def generated(self, tokens: int) -> None:
        """Tokens produced by one turn."""

    def finished(self, reason: str, wasted_tokens: int) -> None:
        """A request ended: a FinishReason's value, or an error's reason in lower case; tokens nobody will read."""

    def state(self, queued: int, running: int, kv_ratio: float) -> None:
        """After a turn: requests waiting, rows live, worst-case state of live rows as a share of what is allowed."""


class NullMetrics:
    """Counts nothing."""

    def admitted(self, queue_s: float, prompt_tokens: int) -> None: ...
    def prefilled(self, seconds: float) -> None: ...
    def looked_up(self, tokens: int, *, hits: int, reused: int) -> None: ...
    def stepped(self, seconds: float, rows: int, steps: int = 1) -> None: ...
    def speculated(self, drafted: int, accepted: int) -> None: ...
    def first_token(self, seconds: float) -> None: ...
    def next_tokens(self, gap_s: float, rows: int) -> None: ...
    def generated(self, tokens: int) -> None: ...
    def finished(self, reason: str, wasted_tokens: int) -> None: ...
    def state(self, queued: int, running: int, kv_ratio: float) -> None: ...
