"""Damages answers on purpose, so that `export.adequacy_fit` can learn how damaged answers look to a server:

    lost words      a third to half of the words, one after the other, is left out
    lost sentence   the source has one more sentence
    repeated        the answer is there twice
    foreign         the words of the source are spelled backwards, as text of an unknown language

Where an answer lacks something, the probabilities of its tokens are those that the variant's own graphs give them; in
one that is there twice, both halves keep theirs. Foreign sources are not answered: a model may do anything with them.
Only their own trait is taken.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from export.bundle.adequacy import Traits, traits_of
from export.bundle.confidence import word_spans
from export.bundle.manifest import PAD_MULTIPLE
from export.scheme_speed import ROWS
from export.verification.golden import encode_for_decode
from export.verification.inputs import Ids
from export.verification.ort_graphs import OrtGraphs, round_up
from model.config import LanguagePair, ModelConfig
from model.tokenizer import Tokenizer

KINDS = ("lost words", "lost sentence", "repeated", "foreign")
SHARE_LOST = (1 / 3, 1 / 2)


class Answered(NamedTuple):
    """A text, its tokens without special ones, and an answer, end token included unless it was cut."""

    text: str
    source: Ids
    answer: Ids
    logprobs: tuple[float, ...] = ()


class _Damaged(NamedTuple):
    """One of the answers, made of the one at `place`."""

    kind: str
    place: int
    answered: Answered


@dataclass(frozen=True)
class Damage:
    """Damages answers of one variant. languages: of sources and answers."""

    graphs: OrtGraphs
    tokenizer: Tokenizer
    config: ModelConfig
    languages: LanguagePair

    def traits(self, answers: Sequence[Answered]) -> list[dict[str, Traits]]:
        """The traits of what was made of each answer, by kind."""
        found = [{kind: self.traits_of(one) for kind, one in damaged.items()} for damaged in self.damaged(answers)]
        for one, traits in zip(answers, found, strict=True):
            backwards = self.tokenizer.encode(" ".join(word[::-1] for word in one.text.split()))
            is_known = self.config.source_vocab_size > 0 or self.config.unk_id not in backwards
            if backwards and is_known:  # a closed vocabulary refuses such words
                rate = len(backwards) / len(one.text)
                traits["foreign"] = self.traits_of(one)._replace(tokens_per_character=rate)
        return found

    def traits_of(self, one: Answered) -> Traits:
        """The traits of an answer."""
        return traits_of(one.source, len(one.text), one.answer, one.logprobs, self.config.eos_ids)

    def damaged(self, answers: Sequence[Answered]) -> list[dict[str, Answered]]:
        """What was made of each answer, by kind; always the same. Nothing is made of an answer that was cut."""
        draw = random.Random(2)
        found: list[dict[str, Answered]] = [{} for _ in answers]
        made = list[_Damaged]()
        for place, one in enumerate(answers):
            if len(one.answer) > 1 and one.answer[-1] in self.config.eos_ids:
                logprobs = (*one.logprobs[:-1], *one.logprobs)
                found[place]["repeated"] = one._replace(answer=(*one.answer[:-1], *one.answer), logprobs=logprobs)
                made += self._shortened(place, one, answers[place - 1], draw)
        made.sort(key=lambda one: len(one.answered.answer))
        for first in range(0, len(made), ROWS):
            batch = made[first : first + ROWS]
            scores = self._logprobs([one.answered for one in batch])
            for (kind, place, answered), logprobs in zip(batch, scores, strict=True):
                found[place][kind] = answered._replace(logprobs=logprobs)
        return found

    def _shortened(self, place: int, one: Answered, other: Answered, draw: random.Random) -> Iterator[_Damaged]:
        text = self.tokenizer.target.decode(one.answer)
        if len(words := word_spans(text)) > 1:
            count = max(1, round(len(words) * draw.uniform(*SHARE_LOST)))
            first = draw.randrange(len(words) - count + 1)
            after = text[words[first + count][0] :] if first + count < len(words) else ""
            kept = self.tokenizer.target.encode((text[: words[first][0]] + after).strip())
            if 0 < len(kept) < len(one.answer) - 1:
                yield _Damaged("lost words", place, one._replace(answer=(*kept, self.config.eos_id)))
        longer = Answered(f"{one.text} {other.text}", (*one.source, *other.source), one.answer)
        if len(self._wrapped(longer)) <= self.config.max_source_len:
            yield _Damaged("lost sentence", place, longer)

    def _wrapped(self, one: Answered) -> Ids:
        return tuple(self.config.template.wrap_source(one.source, self.languages))

    def _logprobs(self, batch: Sequence[Answered]) -> list[tuple[float, ...]]:
        """The log-probabilities of the answers' tokens."""
        cross = encode_for_decode(self.graphs, [self._wrapped(one) for one in batch])
        start = self.config.template.wrap_prompt((), self.languages)
        fed = [(*start, *one.answer) for one in batch]
        steps = max(map(len, fed)) - 1
        buffers = self.graphs.buffers(len(batch), round_up(steps, PAD_MULTIPLE))
        found = [list[float]() for _ in batch]
        for position in range(steps):
            blocks = [[tokens[min(position, len(tokens) - 1)]] for tokens in fed]
            best = self.graphs.decode(blocks, [position] * len(batch), buffers, cross, top_k=1)
            for row, tokens in enumerate(fed):
                if len(start) - 1 <= position < len(tokens) - 1:
                    found[row].append(float(best.logprobs[row, tokens[position + 1]]))
        return list(map(tuple, found))
