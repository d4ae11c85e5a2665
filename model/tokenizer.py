"""Text ↔ token ids, on top of Hugging Face `tokenizers`. A tokenizer is one file, `tokenizer.json`.

Two kinds are trained here: `bpe`, a byte-level BPE (Sennrich et al. 2016; bytes as in GPT-2) that knows every text and
gives every text back exactly, and `words`, a closed vocabulary of whole words and punctuation marks for corpora whose
vocabulary is known, where an unknown word can be named instead of being cut into pieces.

Nothing here adds start or end tokens: which ids frame a sequence is the business of the model. Nothing here imports
torch: the service tokenises with this module.

    TokenizerError (ValueError)
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")  # ids 0..3, always
MASK, MASK_ID = "<mask>", 4  # where one was asked for
BLANK = "▁"  # stands for the blank before a word, as in SentencePiece

Kind = Literal["bpe", "words"]


class TokenizerError(ValueError):
    """A tokenizer cannot be trained, read or used as asked."""


class Tokenizer:
    """Encodes text to ids and decodes ids to text. Never changed after construction, so threads may share one."""

    def __init__(self, backend: Backend) -> None:
        for token, name in enumerate(SPECIAL):
            if backend.token_to_id(name) != token:
                raise TokenizerError(
                    f"{name} must have id {token}, got {backend.token_to_id(name)}; train the tokenizer with glossa"
                )
        backend.encode_special_tokens = True  # "<eos>" typed by a user is five characters, not the end of a sentence
        self._backend = backend
        decoder = json.loads(backend.to_str())["decoder"]["type"]
        if decoder not in ("ByteLevel", "Metaspace"):
            raise TokenizerError(f"decoder must be ByteLevel or Metaspace, got {decoder}")
        self._is_bpe = decoder == "ByteLevel"
        self._pieces = self._build_pieces()

    @classmethod
    def train(cls, texts: Iterable[str], *, kind: Kind, vocab_size: int, with_mask: bool = False) -> Tokenizer:
        """Learn a vocabulary of at most vocab_size entries. The same texts give the same file, byte for byte.

        with_mask: MASK is a special token, too.

        A `words` vocabulary that would not fit is an error: cutting a closed vocabulary would make words of the
        corpus itself unknown.
        """
        special = [*SPECIAL, *([MASK] if with_mask else [])]
        return cls((_train_bpe if kind == "bpe" else _train_words)(texts, vocab_size, special))

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TokenizerError(f"{path}: cannot be read: {error}") from error
        return cls.from_json(text, name=str(path))

    @classmethod
    def from_json(cls, text: str, *, name: str = "tokenizer.json") -> Tokenizer:
        """From the text of a tokenizer.json; `name` stands in error messages."""
        try:
            backend = Backend.from_str(text)
        except Exception as error:  # the binding raises plain Exception for whatever is wrong with the JSON
            raise TokenizerError(f"{name}: not a tokenizer.json: {error}") from error
        return cls(backend)

    def to_json(self) -> str:
        return self._backend.to_str(pretty=True)

    def save(self, path: Path) -> None:
        path.write_text(self.to_json(), encoding="utf-8")

    @property
    def vocab_size(self) -> int:
        return len(self._pieces)

    @property
    def pieces(self) -> Sequence[bytes]:
        """The UTF-8 bytes that each id stands for, none for special tokens. Not to be changed."""
        return self._pieces

    @property
    def drops_first_blank(self) -> bool:
        """The blank that begins the first word's bytes is no part of the text."""
        return not self._is_bpe

    @property
    def pad_id(self) -> int:
        return 0

    @property
    def bos_id(self) -> int:
        return 1

    @property
    def eos_id(self) -> int:
        return 2

    @property
    def unk_id(self) -> int:
        return 3

    def special_text(self, token: int) -> str:
        """How a special token is written."""
        text: str | None = self._backend.id_to_token(token)
        if text is None:
            raise TokenizerError(f"token id must be 0..{self.vocab_size - 1}, got {token}")
        return text

    def reading_special(self, token: int) -> Tokenizer:
        """The same tokenizer, but for one special token, which is read where its text stands, with the blanks around it
        that the token is said to take."""
        values = json.loads(self._backend.to_str())
        for added in values["added_tokens"]:
            added["special"] = added["special"] and added["id"] != token
        return Tokenizer.from_json(json.dumps(values))

    def encode(self, text: str) -> list[int]:
        """Ids of the text, without start and end tokens. Holds the GIL; for long texts see `encode_batch`."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The same for many texts, in parallel and without holding the GIL."""
        encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Which characters [start, end) of `text`, as it was typed, each id of `encode(text)` stands for.

        The blank before a word is part of it. Starts and ends never decrease. A character whose bytes are spread over
        several ids belongs to each of them. Blanks that `words` leaves out belong to none, every other character to
        at least one.
        """
        spans: list[tuple[int, int]] = self._backend.encode(text, add_special_tokens=False).offsets
        if self._is_bpe:
            return spans
        whole: list[tuple[int, int]] = []
        for place, (start, end) in enumerate(spans):
            limit = spans[place + 1][0] if place + 1 < len(spans) else len(text)
            while end < limit and not text[end].isspace():  # NFC made it one with the character before it
                end += 1
            whole.append((start, end))
        return whole

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids; pad, bos, eos and unk are skipped, bytes that are no UTF-8 become U+FFFD."""
        text: str = self._backend.decode(list(ids), skip_special_tokens=True)
        return text

    def unknown_words(self, text: str) -> list[str]:
        """Words of the text that the vocabulary lacks, in order, once each. Always empty for `bpe`."""
        if self._is_bpe:
            return []
        normalizer = self._backend.normalizer
        normalised = normalizer.normalize_str(text) if normalizer is not None else text
        pieces = [piece for piece, _ in self._backend.pre_tokenizer.pre_tokenize_str(normalised)]
        missing = [piece for piece in pieces if self._backend.token_to_id(piece) is None]
        return list(dict.fromkeys(piece.removeprefix(BLANK) or piece for piece in missing))

    def incremental(self) -> IncrementalDecoder:
        """A decoder for one sequence whose ids arrive one by one."""
        return IncrementalDecoder(self._pieces, drops_first_blank=self.drops_first_blank)

    def _build_pieces(self) -> list[bytes]:
        """The UTF-8 bytes each id stands for; nothing for special tokens."""
        vocabulary = self._backend.get_vocab(with_added_tokens=True)
        if sorted(vocabulary.values()) != list(range(len(vocabulary))):
            raise TokenizerError(f"token ids must be 0..{len(vocabulary) - 1} without gaps")
        byte_of = _byte_of_character()
        added = self._backend.get_added_tokens_decoder()
        special = {*range(len(SPECIAL)), *(token for token, what in added.items() if what.special)}
        pieces = [b""] * len(vocabulary)
        for token, index in vocabulary.items():
            if index in special:
                continue
            if self._is_bpe:
                pieces[index] = bytes(byte_of[character] for character in token)
            else:
                pieces[index] = token.replace(BLANK, " ").encode()
        return pieces


class IncrementalDecoder:
    """Turns ids into text as they arrive; what has been returned is never taken back.

    The concatenation of all `push` results and the final `flush` equals `Tokenizer.decode` of all ids. A character
    whose bytes are spread over several tokens comes out with the last of them. The library's own `DecodeStream` lost:
    it decodes a window twice a token and raises on bytes that are no UTF-8, which a model is free to produce.
    """

    def __init__(self, pieces: Sequence[bytes], *, drops_first_blank: bool) -> None:
        self._pieces = pieces
        self._drops_blank = drops_first_blank  # the blank before the first word is no part of the text
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Text that is certain after this token: "" while a UTF-8 character is incomplete, and for special tokens."""
        if not 0 <= token < len(self._pieces):
            raise TokenizerError(f"token id must be 0..{len(self._pieces) - 1}, got {token}")
        piece = self._pieces[token]
        if self._drops_blank and piece:
            piece, self._drops_blank = piece.removeprefix(b" "), False
        return self._utf8.decode(piece)

    def flush(self) -> str:
        """What is left at the end: U+FFFD for the bytes of a character that never became complete."""
        return self._utf8.decode(b"", final=True)


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
    unlimited = 10_000_000  # the trainer would cut silently; the check below speaks
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


def _byte_of_character() -> dict[str, int]:
    """The inverse of GPT-2's table that gives every byte a printable character."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    table.update({chr(256 + place): byte for place, byte in enumerate(others)})
    return table
