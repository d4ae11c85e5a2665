"""One sequence being decoded: what was asked, what was produced, where it stands. No text, no sockets, no clock."""

from __future__ import annotations

from service.errors import RequestError
from service.request import FinishReason, Request

End = FinishReason | RequestError


class Sequence:
    """A request on its way through waiting, live (it has a row) and ended.

    Once it is live and its prompt is read, `cached == len(prompt) + len(tokens) - 1`: the last token is the next input.
    """

    __slots__ = ("cached", "end", "is_cancelled", "request", "row", "tokens")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.tokens: list[int] = []  # produced, end token included
        self.cached = 0  # positions of this sequence that are in the cache
        self.row: int | None = None
        self.is_cancelled = False
        self.end: End | None = None

    @property
    def longest(self) -> int:
        """Positions it can come to need in the cache; its very last token is never an input."""
        return len(self.request.prompt) + self.request.max_tokens - 1

    @property
    def next_input(self) -> int:
        prompt = self.request.prompt
        return prompt[self.cached] if self.cached < len(prompt) else self.tokens[-1]

    def advance(self, positions: int, token: int, eos_id: int) -> bool:
        """`positions` more inputs are cached, then the model chose `token`. False: the prompt is not read yet, so the
        choice means nothing."""
        self.cached += positions
        if self.cached < len(self.request.prompt):
            return False
        self.tokens.append(token)
        if token == eos_id:
            self.finish(FinishReason.END_OF_SEQUENCE)
        elif len(self.tokens) >= self.request.max_tokens:
            self.finish(FinishReason.LENGTH)
        return True

    def finish(self, end: End) -> None:
        """The one way to end. The first end counts; its row is free from the next plan on."""
        if self.end is None:
            self.end = end
