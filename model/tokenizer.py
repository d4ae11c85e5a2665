"""Text ↔ token ids, on top of Hugging Face `tokenizers`. A tokenizer is one file, `tokenizer.json`.

Two kinds are trained here: `bpe`, a byte-level BPE (Sennrich et al. 2016; bytes as in GPT-2) that encodes every text
without loss, and `words`, a closed vocabulary of whole words and punctuation marks for corpora whose vocabulary is
known, where an unknown word can be reported instead of being split. Other files are read if their tokens are bytes
(GPT-2 and its descendants), mark a preceding space with "▁" (SentencePiece), or mark a continued word with "##"
(WordPiece).

This module defines the bytes of each token; ids decode to their concatenated bytes, read as UTF-8. `tokenizers` only
segments texts and knows no special tokens: there each has another name, which no text can contain, so that a "</s>"
typed by a user is four characters. Which ids surround a sequence, and which one ends it, belongs to the model's
special-token template. Nothing here imports torch: the service tokenizes with this module.

    TokenizerError (ValueError)
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from model.tokenizers.least_tokens import least_tokens_of
from model.tokenizers.ordinary_pieces import vocabulary_of, with_ordinary_pieces
from model.tokenizers.sentencepiece import BLANK, SETTINGS, normalizer_of, unigram_of
from model.tokenizers.spans import Span, whole_spans, word_starts
from model.tokenizers.token_bytes import bytes_of_characters, bytes_reader, token_pieces
from model.tokenizers.vocabulary_checks import check_gaps, check_unknown_token

SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")  # ids 0..3 of the tokenizers that are trained here
MASK, MASK_ID, SEPARATOR = "<mask>", 4, "<sep>"  # of those trained with one; <sep> is between sentences
MAX_ENTRIES = 1 << 24  # of a vocabulary; the largest ones have some 260,000
# Parts of a tokenizer.json for texts of the target's side, in its model; with "added_tokens" they have their own ids.
OWN_TARGET = "target"

Kind = Literal["bpe", "words"]


class TokenizerError(ValueError):
    """A tokenizer cannot be trained, read or used with these arguments."""


class Tokenizer:
    """Encodes text to ids and decodes ids to text. Never changed after construction, so threads may share one.

    vocab_size: the number of ids; the model may have more than the tokenizer, which have no text.
    pieces: the UTF-8 bytes of each id, none for special tokens. Read-only.
    special: the ids of special tokens by their names.
    strips_leading_space: the space at the start of the first word's bytes is not part of the text.
    target: the tokenizer of target texts: another one if sources are segmented differently, or have ids of their own.
    is_closed: whole words, others are unknown.
    is_standard: the library segments texts by the file alone as this class does.
    """

    def __init__(
        self, values: dict[str, Any], *, vocab_size: int = 0, source_vocab_size: int = 0, text: str = ""
    ) -> None:
        """values: of a tokenizer.json, whose text is `text`. Sizes: see `from_json`. Raises TokenizerError."""
        self._text = text or json.dumps(values, ensure_ascii=False, indent=2)
        try:
            model, flagged = values["model"], values.get("added_tokens") or []
            ids = _ids(model, flagged)
            check_gaps(ids)
            check_unknown_token(model)
            self.special: Mapping[str, int] = {item["content"]: item["id"] for item in flagged if item["special"]}
            added, by_byte = with_ordinary_pieces(model, flagged)
            hidden = {item["content"] for item in added if item["special"]} - by_byte
            own: dict[str, Any] = (values.get("normalizer") or {}).get(SETTINGS, {})
            self._normalize = normalizer_of(values["normalizer"], added) if own else None
            self._known, self._unknown = own.get("known", 0), own.get("unknown", 0)
            self._listed = ids if self._known else {}
            unmatched = {*own.get("unmatched", ()), *(ids[name] for name in hidden)}
            piece_of, self.strips_leading_space = bytes_reader(values.get("decoder"))
            is_unigram = bool(own) and model["type"] == "Unigram"
            self._unigram = unigram_of(model, ids, added, unmatched) if is_unigram else None
            self._backend = None if is_unigram else _backend({**values, "added_tokens": added}, ids, unmatched)
            self._least_tokens = least_tokens_of(values, hidden)
            other = model.get(OWN_TARGET)
        except (KeyError, TypeError, AttributeError) as error:
            raise TokenizerError(f"not a tokenizer.json: {error!r}") from error
        except ValueError as error:
            raise TokenizerError(str(error)) from error
        self._is_bytes, self.is_closed = piece_of is bytes_of_characters, model.get("type") == "WordLevel"
        size = self._known or max(ids.values(), default=-1) + 1
        most = source_vocab_size or vocab_size
        if most and size > most:
            side = " of sources" * bool(source_vocab_size)
            raise TokenizerError(f"must have at most the model's {most} entries{side}, got {size}")
        self.vocab_size = max(size, most)
        words = ids.keys() - vocabulary_of(model).keys()
        self.pieces: Sequence[bytes] = token_pieces(
            ids, {ids[name] for name in hidden}, piece_of, self.vocab_size, words=words
        )
        self.is_standard, self.target = not own and other is None, self
        if other is not None:
            self.target = Tokenizer({**values, **other}, vocab_size=vocab_size, text="-")
            if "added_tokens" not in other:
                self.target.pieces = self.pieces
        if vocab_size and self.has_two_vocabularies != bool(source_vocab_size):
            ours, theirs = ("two vocabularies", "one") if self.has_two_vocabularies else ("one vocabulary", "two")
            raise TokenizerError(f"has {ours}, the model {theirs}; it is of another model")

    @classmethod
    def train(
        cls, texts: Iterable[str], *, kind: Kind, vocab_size: int, with_mask: bool = False, with_separator: bool = False
    ) -> Tokenizer:
        """Learn a vocabulary of at most vocab_size entries. The same texts give the same file, byte for byte.

        with_mask, with_separator: add MASK, SEPARATOR. Raises TokenizerError for a `words` vocabulary that would not
        fit: cutting a closed vocabulary would make words of the corpus itself unknown.
        """
        special = [*SPECIAL, *([MASK] if with_mask else []), *([SEPARATOR] if with_separator else [])]
        train = _train_bpe if kind == "bpe" else _train_words
        return cls.from_json(train(texts, vocab_size, special).to_str(pretty=True))

    @classmethod
    def load(cls, path: Path, *, vocab_size: int = 0, source_vocab_size: int = 0) -> Tokenizer:
        """From a tokenizer.json; see `from_json`."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TokenizerError(f"{path}: cannot be read: {error}") from error
        return cls.from_json(text, name=str(path), vocab_size=vocab_size, source_vocab_size=source_vocab_size)

    @classmethod
    def from_json(
        cls, text: str, *, name: str = "tokenizer.json", vocab_size: int = 0, source_vocab_size: int = 0
    ) -> Tokenizer:
        """From the text of a tokenizer.json; `name` stands in error messages. vocab_size: the model's, which the
        tokenizer's ids must be below; 0: as many as the tokenizer has. source_vocab_size: the same of sources with ids
        of their own; 0: they have none."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise TokenizerError(f"{name}: not a tokenizer.json: {error}") from error
        if not isinstance(values, dict):
            raise TokenizerError(f"{name}: not a tokenizer.json: must be an object, got {type(values).__name__}")
        try:
            return cls(values, vocab_size=vocab_size, source_vocab_size=source_vocab_size, text=text)
        except TokenizerError as error:
            raise TokenizerError(f"{name}: {error}") from error

    def to_json(self) -> str:
        """The text of the tokenizer.json."""
        return self._text

    def special_text(self, token: int) -> str:
        """The text of a special token. Raises TokenizerError for other ids."""
        for text, special in self.special.items():
            if special == token:
                return text
        raise TokenizerError(f"token {token} is not special; special are {', '.join(self.special):.200}")

    def matching_special(self, token: int) -> Tokenizer:
        """The same tokenizer, except that it matches one special token in texts, with the spaces around it that the
        token is declared to absorb."""
        values = json.loads(self._text)
        for added in values["added_tokens"]:
            added["special"] = added["special"] and added["id"] != token
        own = (values.get("normalizer") or {}).get(SETTINGS, {})
        own["unmatched"] = [other for other in own.get("unmatched", ()) if other != token]
        return Tokenizer(values, vocab_size=self.vocab_size)

    def save(self, path: Path) -> None:
        path.write_text(self.to_json(), encoding="utf-8")

    def encode(self, text: str) -> list[int]:
        """Ids of the text, without start and end tokens. Holds the GIL; for long texts see `encode_batch`."""
        return [token for token, _ in self._cut(self._normalize(text) if self._normalize else text)]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of many texts; `tokenizers` segments them in parallel and without holding the GIL."""
        if self._backend is None or self._known:
            return [self.encode(text) for text in texts]
        normal = [self._normalize(text) for text in texts] if self._normalize else list(texts)
        return [encoding.ids for encoding in self._backend.encode_batch_fast(normal, add_special_tokens=False)]

    @property
    def has_two_vocabularies(self) -> bool:
        """Whether targets have ids of their own, those of `target`."""
        return self.target.pieces is not self.pieces

    @property
    def has_own_vocabulary(self) -> bool:
        """Whether ids are those of a vocabulary beside the pieces that texts are segmented into."""
        return bool(self._known)

    def words(self, texts: Sequence[str]) -> list[list[list[int]]]:
        """The ids of many texts, of each by the words that are segmented one by one. A text that is segmented as a
        whole is one word. Not for a Unigram model or a separate vocabulary, which `encode` alone knows."""
        assert self._backend is not None
        normal = [self._normalize(text) for text in texts] if self._normalize else list(texts)
        batch = self._backend.encode_batch(normal, add_special_tokens=False)
        pairs = (zip(encoding.word_ids, encoding.ids, strict=True) for encoding in batch)
        return [[[token for _, token in word] for _, word in groupby(text, itemgetter(0))] for text in pairs]

    def least_tokens(self, text: str) -> int:
        """A number that `len(encode(text))` is not below, found in a fraction of its time; 0: none is known."""
        return self._least_tokens(text)

    def _cut(self, normal: str) -> list[tuple[int, Span]]:
        """Ids of a normalised text and the span of each."""
        if self._unigram is not None:
            cuts = [(token, (start, end)) for token, start, end in self._unigram.cut(normal)]
        else:
            assert self._backend is not None
            encoding = self._backend.encode(normal, add_special_tokens=False)
            cuts = list(zip(encoding.ids, encoding.offsets, strict=True))
        return [(self._looked_up(token, normal[slice(*span)]), span) for token, span in cuts] if self._known else cuts

    def _looked_up(self, token: int, text: str) -> int:
        """The id in a separate vocabulary: pieces that it lacks are unknown, and an unknown text may be in it."""
        if token == self._unknown:
            token = self._listed.get(text, token)
        return token if token < self._known else self._unknown

    def offsets(self, text: str) -> list[Span]:
        """The characters [start, end) of `text`, before normalization, of each id of `encode(text)`.

        The blank before a word is part of it. Starts and ends never decrease. A character whose bytes are spread over
        several ids belongs to each of them. Omitted blanks belong to none, every other character to at least one.
        """
        normal, origins = self._normalize.traced(text) if self._normalize else (text, None)
        spans = [span for _, span in self._cut(normal)]
        if self._is_bytes:
            return spans
        if origins is not None:
            spans = [(origins[start][0], origins[end - 1][1]) if start < end else (-1, -1) for start, end in spans]
        return whole_spans(spans, text)

    def word_starts(self, text: str) -> list[bool]:
        """For each id of `encode(text)` whether a word begins with it: at a blank, as a piece that is marked so, or at
        the border of letters, digits and underscores to other characters, each of which is a word. The blank before a
        word is part of it, also as an id of its own."""
        blanks = [self.pieces[token].startswith(b" ") and not self._is_bytes for token in self.encode(text)]
        return word_starts(text, self.offsets(text), blanks)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids; special tokens are skipped, bytes that are no UTF-8 become U+FFFD."""
        if ids and not 0 <= min(ids) <= max(ids) < self.vocab_size:
            raise TokenizerError(f"token ids must be 0..{self.vocab_size - 1}, got {min(ids)}..{max(ids)}")
        data = b"".join([self.pieces[token] for token in ids])
        return (data.removeprefix(b" ") if self.strips_leading_space else data).decode("utf-8", "replace")

    def unknown_words(self, text: str) -> list[str]:
        """Words of the text that a closed vocabulary lacks, in order, without duplicates; empty for all other kinds."""
        if not self.is_closed or self._backend is None:
            return []
        normalizer, pre_tokenizer = self._backend.normalizer, self._backend.pre_tokenizer
        normalised = normalizer.normalize_str(text) if normalizer is not None else text
        pieces = [piece for piece, _ in pre_tokenizer.pre_tokenize_str(normalised)] if pre_tokenizer else [normalised]
        missing = [piece for piece in pieces if self._backend.token_to_id(piece) is None]
        return list(dict.fromkeys(piece.removeprefix(BLANK) or piece for piece in missing))

    def incremental(self) -> IncrementalDecoder:
        """A decoder for one sequence whose ids arrive one by one."""
        return IncrementalDecoder(self.pieces, strips_leading_space=self.strips_leading_space)

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """The text that each id completes; concatenated, the text of all."""
        decoder = self.incremental()
        texts = [decoder.push(token) for token in ids]
        if texts:
            texts[-1] += decoder.flush()
        return texts


class IncrementalDecoder:
    """Decodes ids one by one; returned text is final.

    The concatenation of all `push` results and the final `flush` equals `Tokenizer.decode` of all ids. A character
    whose bytes are spread over several tokens is returned with the last of them. Not the library's `DecodeStream`: it
    decodes a window twice per token and raises on bytes that are not UTF-8, which a model may produce.
    """

    def __init__(self, pieces: Sequence[bytes], *, strips_leading_space: bool) -> None:
        self._pieces = pieces
        self._drops_blank = strips_leading_space  # the blank before the first word is not part of the text
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Text that is final after this token: "" while a UTF-8 character is incomplete, and for special tokens."""
        if not 0 <= token < len(self._pieces):
            raise TokenizerError(f"token id must be 0..{len(self._pieces) - 1}, got {token}")
        piece = self._pieces[token]
        if self._drops_blank and piece:
            piece, self._drops_blank = piece.removeprefix(b" "), False
        return self._utf8.decode(piece)

    def flush(self) -> str:
        """The rest at the end: U+FFFD for the bytes of an incomplete character."""
        return self._utf8.decode(b"", final=True)


def _ids(model: Mapping[str, Any], added: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """The id of every entry, added ones included; they may have gaps."""
    ids = vocabulary_of(model) | {item["content"]: item["id"] for item in added}
    most = max(ids.values(), default=-1)
    if not all(type(token) is int for token in ids.values()) or min(ids.values(), default=0) < 0 or most >= MAX_ENTRIES:
        raise TokenizerError(f"token ids must be whole numbers 0..{MAX_ENTRIES - 1}, got up to {most}")
    return ids


def _backend(values: Mapping[str, Any], ids: Mapping[str, int], unmatched: set[int]) -> Backend:
    """The library's tokenizer, for segmentation only: without special tokens, templates and decoding, and, for a file
    converted from SentencePiece, without normalization. Its ids are those of the file.

    unmatched: ids that no text matches.
    """
    added = {item["content"]: item for item in values.get("added_tokens") or ()}
    hidden = {name: _hidden(name) for name, token in ids.items() if token in unmatched}
    model = {name: value for name, value in values["model"].items() if name not in (OWN_TARGET, "dropout")}
    if isinstance(model["vocab"], list):
        model["vocab"] = [(hidden.get(piece, piece), score) for piece, score in model["vocab"]]
    else:  # a gap would shift the ids of added tokens
        own = {hidden.get(piece, piece): token for piece, token in model["vocab"].items()}
        missing = sorted(set(range(max(own.values(), default=-1) + 1)).difference(own.values()))
        model["vocab"] = own | {_hidden(f"gap {token}"): token for token in missing}
    if model.get("unk_token") in hidden:
        model["unk_token"] = hidden[model["unk_token"]]
    items = {item["id"]: {**item, "content": hidden.get(name, name)} for name, item in added.items()}
    for token in range(len(model["vocab"]), max(items, default=-1) + 1):
        items.setdefault(token, {**_PLAIN, "id": token, "content": _hidden(f"gap {token}")})
    text: dict[str, Any] = {"added_tokens": [items[token] for token in sorted(items)], "model": model}
    if SETTINGS not in (values.get("normalizer") or {}):
        text |= {name: values.get(name) for name in ("normalizer", "pre_tokenizer")}
    try:
        backend = Backend.from_str(json.dumps(text))
    except BaseException as error:  # the binding raises plain Exception for invalid values, and panics derive from none
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise TokenizerError(f"not a tokenizer.json: {error}") from error
    backend.encode_special_tokens = True
    for name, item in added.items():
        if backend.token_to_id(hidden.get(name, name)) != ids[name]:
            raise TokenizerError(f"added token {name!r} must have an id that no other has, got {item['id']}")
    return backend


_PLAIN = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}


def _hidden(name: str) -> str:
    """A name that no text contains when it is segmented: blanks are marked or removed before."""
    return f" \0{name}"


def _train_bpe(texts: Iterable[str], vocab_size: int, special: list[str]) -> Backend:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if vocab_size < len(special) + len(alphabet):
        raise TokenizerError(
            f"vocab_size must be at least {len(special) + len(alphabet)} for byte-level BPE (256 bytes and "
            f"{len(special)} special tokens), got {vocab_size}"
        )
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,  # a pair seen once is noise
        special_tokens=special,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return backend


def _train_words(texts: Iterable[str], vocab_size: int, special: list[str]) -> Backend:
    backend = Backend(models.WordLevel(unk_token=SPECIAL[3]))
    backend.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    )
    # A word or one punctuation mark, each with the blank before it: "twenty-seven." is ▁twenty - seven .
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(replacement=BLANK, prepend_scheme="always", split=False),
            pre_tokenizers.Split(Regex(rf"{BLANK}?(?:\w+|[^\w{BLANK}])"), behavior="isolated"),
        ]
    )
    backend.decoder = decoders.Metaspace(replacement=BLANK, prepend_scheme="always")
    unlimited = 10_000_000  # the trainer would cut silently; the check below reports it
    trainer: Any = trainers.WordLevelTrainer(
        vocab_size=unlimited, min_frequency=1, special_tokens=special, show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    if backend.get_vocab_size() > vocab_size:
        raise TokenizerError(
            f"the corpus has {backend.get_vocab_size()} different words and marks, vocab_size allows {vocab_size}; "
            "raise vocab_size or use the tokenizer 'bpe'"
        )
    return backend
