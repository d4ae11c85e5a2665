"""Changes of a model's distribution for one request: the protocol (`LogitsProcessor`), penalties and masks.

Text constraints hold for the text of the answer, whatever its tokenization. Grammars are in `grammar`, texts that must
appear in `lexical_constraints`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from service.decoding.aho_corasick import ROOT, AhoCorasick
from service.decoding.vocabulary import Vocabulary
from service.errors import InvalidRequest

FEW = 64  # excluded tokens that are looked up rather than masked


class LogitsProcessor(Protocol):
    """One constraint or penalty of one request: immutable, and shared by the hypotheses of the request. What it
    remembers of one hypothesis is that hypothesis's `state`, an immutable value, so a fork copies references.

    is_mask: it only sets scores to -inf. Other processors run first, and outside of a beam the scores are normalised
    again after them; after masks they are not: a constrained answer keeps the probability that the model gives it.
    """

    is_mask: bool

    def initial_state(self) -> Any:
        """The state before the first new token."""

    def next_state(self, state: Any, token: int) -> Any:
        """The state when `token` has been appended. `state` itself does not change."""

    def applies(self, state: Any, tokens: Sequence[int]) -> bool:
        """Whether `apply` would change anything after `tokens`; a row to which nothing applies costs nothing."""

    def apply(self, scores_V: np.ndarray, state: Any, tokens: Sequence[int]) -> None:
        """Changes scores float32 (V,) in place. `tokens`: the new tokens so far, without the prompt.

        Scores are the model's log-probabilities plus one constant: for processors that are no masks, its logits, in a
        beam its log-probabilities.
        """

    def excluded(self, state: Any, tokens: Sequence[int]) -> Collection[int] | None:
        """The tokens that a mask excludes, where they are few and quickly found: then the best tokens that the graph
        ranked mostly suffice, and no distribution is read. None: only `apply` knows."""


class _Stateless:
    """A processor that depends only on the tokens, and applies to all of them by default."""

    def initial_state(self) -> None:
        return None

    def next_state(self, state: None, token: int) -> None:
        return None

    def applies(self, state: None, tokens: Sequence[int]) -> bool:
        return True

    def excluded(self, state: None, tokens: Sequence[int]) -> Collection[int] | None:
        return None


class RepetitionPenalty(_Stateless):
    """Divides positive and multiplies other logits of tokens in the prompt or answer (Keskar et al. 2019, 4.1)."""

    is_mask = False

    def __init__(self, penalty: float, prompt: Sequence[int]) -> None:
        self._penalty, self._prompt = penalty, tuple(prompt)

    def apply(self, scores_V: np.ndarray, state: None, tokens: Sequence[int]) -> None:
        """Divides or multiplies the logits of tokens that occurred."""
        seen = np.array([*self._prompt, *tokens], np.int64)
        logits = scores_V[seen]
        scores_V[seen] = np.where(logits > 0, logits / self._penalty, logits * self._penalty)


class PresenceFrequencyPenalty(_Stateless):
    """Lowers the logits of tokens in the answer: by `presence` once, by `frequency` per occurrence (OpenAI API)."""

    is_mask = False

    def __init__(self, *, presence: float, frequency: float) -> None:
        self._presence, self._frequency = presence, frequency

    def applies(self, state: None, tokens: Sequence[int]) -> bool:
        """Whether the answer has tokens."""
        return len(tokens) > 0

    def apply(self, scores_V: np.ndarray, state: None, tokens: Sequence[int]) -> None:
        """Subtracts the penalties."""
        ids, counts = np.unique(np.array(tokens, np.int64), return_counts=True)
        scores_V[ids] -= (self._presence + self._frequency * counts).astype(np.float32)


class LogitBias(_Stateless):
    """Adds a bias to the logits of some tokens."""

    is_mask = False

    def __init__(self, biases: Mapping[int, float]) -> None:
        self._ids = np.array(list(biases), np.int64)
        self._biases = np.array(list(biases.values()), np.float32)

    def apply(self, scores_V: np.ndarray, state: None, tokens: Sequence[int]) -> None:
        """Adds the biases."""
        scores_V[self._ids] += self._biases


class PrefixBias(_Stateless):
    """Prefers a prefix while the answer follows it: p' = (1 - β)·p + β for its next token, (1 - β)·p for the others
    (prefix_bias_beta of CTranslate2)."""

    is_mask = False

    def __init__(self, beta: float, prefix: Sequence[int]) -> None:
        assert 0 < beta < 1, beta
        self._beta, self._prefix = beta, list(prefix)

    def applies(self, state: None, tokens: Sequence[int]) -> bool:
        """Whether a token of the prefix comes next."""
        return len(tokens) < len(self._prefix) and list(tokens) == self._prefix[: len(tokens)]

    def apply(self, scores_V: np.ndarray, state: None, tokens: Sequence[int]) -> None:
        """Multiplies by 1 - β, and adds β·Z to the next token, where Z is the sum over all tokens."""
        highest = scores_V.max()
        total = highest + np.log(np.exp(scores_V - highest).sum(dtype=np.float64))
        scores_V += np.float32(math.log1p(-self._beta))
        token = self._prefix[len(tokens)]
        scores_V[token] = np.logaddexp(scores_V[token], total + math.log(self._beta))


class MinLength(_Stateless):
    """Excludes end tokens before the answer has `before` tokens."""

    is_mask = True

    def __init__(self, eos_ids: Sequence[int], *, before: int) -> None:
        self._eos_ids, self._before = list(eos_ids), before

    def applies(self, state: None, tokens: Sequence[int]) -> bool:
        """Whether the answer is too short to end."""
        return len(tokens) < self._before

    def apply(self, scores_V: np.ndarray, state: None, tokens: Sequence[int]) -> None:
        """Excludes the end tokens."""
        scores_V[self._eos_ids] = -np.inf

    def excluded(self, state: None, tokens: Sequence[int]) -> Collection[int]:
        """The end tokens."""
        return self._eos_ids


class NoRepeatNGram(_Stateless):
    """No n-gram of `length` tokens appears twice in prompt and answer, as in `transformers`. Only an end token may end
    one again: a prompt has some between its turns, and is one itself where the decoder starts from it."""

    is_mask = True

    def __init__(self, length: int, prompt: Sequence[int] = (), *, eos_ids: Sequence[int] = ()) -> None:
        self._length, self._prompt, self._eos_ids = length, np.array(prompt, np.int64), frozenset(eos_ids)

    def applies(self, state: None, tokens: Sequence[int]) -> bool:
        """Whether prompt and answer have an n-gram."""
        return len(self._prompt) + len(tokens) >= self._length

    def apply(self, scores_V: np.ndarray, state: None, tokens: Sequence[int]) -> None:
        """Excludes the tokens that complete an n-gram again."""
        scores_V[self.excluded(state, tokens)] = -np.inf

    def excluded(self, state: None, tokens: Sequence[int]) -> list[int]:
        """The tokens that complete an n-gram again."""
        ids = np.concatenate([self._prompt, np.array(tokens, np.int64)])
        given = self._length - 1
        starts = np.arange(len(ids) - given)  # of all n-grams
        for offset, token in enumerate(ids[len(ids) - given :]):
            starts = starts[ids[starts + offset] == token]
        return [token for token in ids[starts + given].tolist() if token not in self._eos_ids]


class AllowedTokens(_Stateless):
    """Excludes all but the given tokens."""

    is_mask = True

    def __init__(self, allowed: Iterable[int]) -> None:
        self._allowed = np.array(sorted(allowed), np.int64)

    def apply(self, scores_V: np.ndarray, state: None, tokens: Sequence[int]) -> None:
        """Excludes all other tokens."""
        kept = scores_V[self._allowed]
        scores_V.fill(-np.inf)
        scores_V[self._allowed] = kept


class BannedTexts:
    """No text of a list appears in the answer, in any tokenization.

    The state is a node of an automaton over the bytes of all texts, and whether no token had text yet. A token
    completes a text if it contains one, or if it begins with the rest of one whose beginning is present. These tokens
    are computed once per node that an answer reaches: a new node costs some binary searches, a step one look-up.
    """

    is_mask = True

    def __init__(self, texts: Sequence[str], vocabulary: Vocabulary) -> None:
        for index, text in enumerate(texts):
            if "\ufffd" in text:
                problem = "must not contain U+FFFD, which represents invalid bytes"
                raise InvalidRequest(f"options.bad_words[{index}]", problem)
        self._vocabulary = vocabulary
        self._texts = [text.encode() for text in dict.fromkeys(texts)]
        self._automaton = AhoCorasick(self._texts)
        self._rests: dict[int, list[bytes]] = {}  # by node: the rests of the texts that begin with its prefix
        for index, pattern in enumerate(self._texts):
            for length, node in enumerate(self._automaton.path(index), start=1):
                if 0 < len(pattern) - length <= vocabulary.longest:
                    self._rests.setdefault(node, []).append(pattern[length:])
        self._inside = np.unique(np.concatenate([vocabulary.containing(text) for text in self._texts]))
        self._found: dict[tuple[int, bool], np.ndarray] = {}

    def initial_state(self) -> tuple[int, bool]:
        """No byte of a text, and no text yet."""
        return ROOT, True

    def next_state(self, state: tuple[int, bool], token: int) -> tuple[int, bool]:
        """The node after the bytes of a token."""
        node, is_first = state
        piece = self._vocabulary.first(token) if is_first else self._vocabulary.pieces[token]
        for byte in piece:
            node = self._automaton.step(node, byte)
        return node, is_first and not self._vocabulary.pieces[token]

    def applies(self, state: tuple[int, bool], tokens: Sequence[int]) -> bool:
        """Whether some token completes a text."""
        return len(self._completing(state)) > 0

    def apply(self, scores_V: np.ndarray, state: tuple[int, bool], tokens: Sequence[int]) -> None:
        """Excludes the tokens that complete a text."""
        scores_V[self._completing(state)] = -np.inf

    def excluded(self, state: tuple[int, bool], tokens: Sequence[int]) -> Collection[int] | None:
        """The tokens that complete a text, if they are few."""
        found = self._completing(state)
        return found.tolist() if len(found) <= FEW else None

    def _completing(self, state: tuple[int, bool]) -> np.ndarray:
        if state not in self._found:
            self._found[state] = self._find(*state)
        return self._found[state]

    def _find(self, node: int, is_first: bool) -> np.ndarray:
        if is_first and self._vocabulary.strips_leading_space:
            written = ((token, self._vocabulary.first(token)) for token in self._inside.tolist())
            return np.array([token for token, piece in written if any(text in piece for text in self._texts)], np.int64)
        rests = {rest for at in self._automaton.chain(node) for rest in self._rests.get(at, ())}
        return np.unique(np.concatenate([self._inside, *map(self._vocabulary.beginning_with, sorted(rests))]))
