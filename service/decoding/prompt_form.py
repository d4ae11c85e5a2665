"""What the decoder of a model reads before an answer, besides the text of a request (`PromptForm`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from service.request import Request


class ContextPlace(NamedTuple):
    """Where a source has the sentences before its text (document context): from position `first` up to the last
    `separator`, which is a token that no text has."""

    first: int
    separator: int

    def positions(self, source: Sequence[int]) -> slice:
        """Positions of the sentences and their separators; empty for a source without any."""
        if self.separator not in source:
            return slice(0, 0)
        return slice(self.first, len(source) - source[::-1].index(self.separator))


class PromptForm(NamedTuple):
    """The same for all requests of a model.

    counted: tokens after the start token, such as a language, with which every translation begins. They count in the
    length of its score: `transformers` generates them, as `forced_bos_token_id`, and divides by their number, too.
    context: of a model that reads sentences before a text.
    """

    counted: int = 0
    context: ContextPlace | None = None

    def own_prompt(self, request: Request) -> tuple[int, ...]:
        """The prompt without the translations of sentences before the text."""
        return request.prompt[: 1 + self.counted] if self.context is not None else request.prompt


PLAIN = PromptForm()
