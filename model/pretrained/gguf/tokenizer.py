"""The tokenizer in the metadata of a GGUF file → the values of a tokenizer.json and of a tokenizer_config.json.

Two kinds are covered: `gpt2`, a byte-level vocabulary with merges, whose split into words is a name that stands for the
tokenizer of a published model (pre_tokenizers.toml), and `llama`, a BPE model of SentencePiece, whose scores order the
merges. A tokenizer.json beside the file says what metadata cannot, and is taken instead if it has the same tokens.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from model.pretrained.convert_tokenizer import sentencepiece_values, tokenizer_values
from model.pretrained.files import TOKENIZER, Fields, PretrainedError, read_json
from model.pretrained.gguf.file import Gguf
from model.pretrained.sentencepiece_model import BPE, Piece, SentencePieceModel
from model.pretrained.tokenizer_files import AddedToken
from model.tokenizers.ordinary_pieces import vocabulary_of as pieces_of
from model.tokenizers.sentencepiece import BLANK

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # `tokenizer.ggml.token_type`
ROLES = {  # keys → the names of tokenizer_config.json
    "bos_token_id": "bos_token",
    "eos_token_id": "eos_token",
    "unknown_token_id": "unk_token",
    "seperator_token_id": "sep_token",
    "padding_token_id": "pad_token",
    "mask_token_id": "mask_token",
}
UNUSED_ROLES = ("seperator_token_id", "padding_token_id", "mask_token_id")  # of a decoder; files name ids that are none
SEGMENTATION = ("merges", "scores", "add_space_prefix", "remove_extra_whitespaces", "precompiled_charsmap")
ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")  # each ends an answer
TEMPLATE = "tokenizer.chat_template"
_TABLE: dict[str, dict[str, str]] = tomllib.loads(
    Path(__file__).with_name("pre_tokenizers.toml").read_text(encoding="utf-8")
)
WORDS = {name: kind for kind, names in _TABLE["names"].items() for name in names.split()}
BEGINNING, WHOLE, COMPOSED = (_TABLE["settings"][name].split() for name in ("start", "whole_words", "nfc"))
ELSE = f"put the {TOKENIZER} of its original model beside the file"


class Vocabulary(NamedTuple):
    """The tokens by id, and the type of each. Tokens at the end that only fill up the model's table are left out."""

    texts: list[str]
    types: list[int]


def key(name: str) -> str:
    """A key of the tokenizer's metadata."""
    return f"tokenizer.ggml.{name}"


def words_of(pre: str) -> str:
    """The expression that splits texts into words, by the name of a split; "": as GPT-2 does."""
    return _TABLE["words"][WORDS[pre]]


def vocabulary_of(fields: Fields) -> Vocabulary:
    """Raises PretrainedError for tokens that are not distinct, and for types that are missing or not known."""
    texts, types = _list(fields, "tokens", str), _list(fields, "token_type", int)
    if len(texts) != len(types):
        raise PretrainedError(f"{fields.file}: {key('token_type')} must have one type for each of {key('tokens')}")
    text, count = Counter(texts).most_common(1)[0]
    if count > 1:
        raise PretrainedError(f"{fields.file}: {key('tokens')}: {text!r} must stand there once")
    if unknown := sorted({*types} - {*range(NORMAL, BYTE + 1)}):
        raise PretrainedError(f"{fields.file}: {key('token_type')} must be {NORMAL}..{BYTE}, got {unknown[0]}")
    size = len(texts)
    while size and types[size - 1] == UNUSED:
        size -= 1
    return Vocabulary(texts[:size], types[:size])


def tokenizer_of(gguf: Gguf, vocabulary: Vocabulary) -> dict[str, Any]:
    """The values of a tokenizer.json, with the tokens around a text. Raises PretrainedError."""
    fields = gguf.fields
    kind = fields.only(key("model"), "gpt2", "llama", default=None)
    beside = gguf.parts[0].with_name(TOKENIZER)
    pre = str(fields.get(key("pre"), ""))
    if beside.is_file():
        values = _beside(fields, beside, vocabulary)
    elif kind == "gpt2":
        values = _byte_level(fields, vocabulary, pre)
    else:
        values = _sentencepiece(fields, vocabulary)
    begins = _flag(fields, "add_bos_token", default=kind == "llama" or pre in BEGINNING)
    ends = _flag(fields, "add_eos_token", default=False)
    fields.only(key("add_sep_token"), False, default=False)
    return {**values, "post_processor": _around(fields, vocabulary, begins=begins, ends=ends)}


def _list(fields: Fields, name: str, kind: type, *, default: Any = None) -> list[Any]:
    """The value of a key, a list of one kind that is not empty; required if there is no default."""
    values = fields.need(key(name)) if default is None else fields.get(key(name), default)
    if values is default:
        return list(values)
    if not isinstance(values, list) or not values or not isinstance(values[0], kind):  # arrays are of one kind
        raise PretrainedError(f"{fields.file}: {key(name)} must be a list of {kind.__name__}, got {values!r:.80}")
    return values


def _flag(fields: Fields, name: str, *, default: bool) -> bool:
    return bool(fields.only(key(name), True, False, default=default))


def special_tokens_of(fields: Fields, vocabulary: Vocabulary) -> dict[str, int]:
    """The ids of special tokens by key. Raises PretrainedError for ids that the vocabulary lacks."""
    found, last = {}, len(vocabulary.texts) - 1
    for name in dict.fromkeys((*ROLES, *ENDS)):
        token = fields.get(key(name), None)
        if type(token) is int and 0 <= token <= last:
            found[name] = token
        elif token is not None and name not in UNUSED_ROLES:
            raise PretrainedError(f"{fields.file}: {key(name)} must be the id of a token, 0..{last}, got {token!r}")
    return found


def tokenizer_config_of(fields: Fields, vocabulary: Vocabulary) -> dict[str, Any]:
    """The values of a tokenizer_config.json: special tokens and chat templates."""
    ids = special_tokens_of(fields, vocabulary)
    values: dict[str, Any] = {role: vocabulary.texts[ids[name]] for name, role in ROLES.items() if name in ids}
    named = {name.removeprefix(f"{TEMPLATE}."): fields.need(name) for name in fields.unread if f"{TEMPLATE}." in name}
    if (template := fields.get(TEMPLATE, None)) is not None:
        named = {"default": template, **named}
    return {**values, "chat_template": [{"name": name, "template": one} for name, one in named.items()]}


def _around(fields: Fields, vocabulary: Vocabulary, *, begins: bool, ends: bool) -> dict[str, Any] | None:
    """A post-processor that adds bos and eos."""
    if not begins and not ends:
        return None
    ids = special_tokens_of(fields, vocabulary)
    parts: list[dict[str, Any]] = [{"Sequence": {"id": "A", "type_id": 0}}]
    special = {}
    for name, is_added, place in (("bos_token_id", begins, 0), ("eos_token_id", ends, 2)):
        if is_added:
            if name not in ids:
                raise PretrainedError(f"{fields.file}: {key(name)} is missing, and a text has that token around it")
            text = vocabulary.texts[ids[name]]
            parts.insert(place, {"SpecialToken": {"id": text, "type_id": 0}})
            special[text] = {"id": text, "ids": [ids[name]], "tokens": [text]}
    return {"type": "TemplateProcessing", "single": parts, "pair": parts, "special_tokens": special}


def _beside(fields: Fields, file: Path, vocabulary: Vocabulary) -> dict[str, Any]:
    """The tokenizer.json beside the file. Raises PretrainedError if it has other tokens."""
    values = read_json(file)
    for name in SEGMENTATION:  # of which the file has its own
        fields.get(key(name), None)
    try:
        known = {token: text for text, token in pieces_of(values["model"]).items()}
    except (KeyError, TypeError, ValueError) as error:
        raise PretrainedError(f"{file}: not a tokenizer.json: {error!r}") from error
    for token, (text, kind) in enumerate(zip(*vocabulary, strict=True)):
        if kind == NORMAL and known.get(token) != text:
            raise PretrainedError(
                f"{file}: is the tokenizer of another model: token {token} is {known.get(token)!r}, and {text!r} in "
                "the GGUF file beside it; move one of them"
            )
    return values


def _byte_level(fields: Fields, vocabulary: Vocabulary, pre: str) -> dict[str, Any]:
    if pre not in WORDS:
        covered = ", ".join(sorted(WORDS))
        raise PretrainedError(f"{fields.file}: {key('pre')} {pre!r} is not covered; covered: {covered}; or {ELSE}")
    fields.get(key("scores"), None)  # of old files; they order nothing
    if _flag(fields, "add_space_prefix", default=False):
        raise fields.refuse(key("add_space_prefix"), ELSE)
    kind = WORDS[pre]
    pattern = words_of(pre)
    own = kind in ("gpt2", "digits")
    by_byte = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": own}
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    merges = [_merge(fields, text) for text in _list(fields, "merges", str)]
    size = 1 + max((token for token, one in enumerate(vocabulary.types) if one in (NORMAL, BYTE)), default=-1)
    pieces = {text: token for token, text in enumerate(vocabulary.texts[:size])}
    model = {"type": "BPE", "vocab": pieces, "merges": merges, "ignore_merges": pre in WHOLE}
    cut = {"type": "Sequence", "pretokenizers": [split, by_byte]} if pattern else by_byte
    return tokenizer_values(
        model,
        _added(vocabulary),
        normalizer={"type": "NFC"} if pre in COMPOSED else None,
        decoder=by_byte,
        pre_tokenizer=cut,
    )


def _added(vocabulary: Vocabulary) -> list[AddedToken]:
    """Tokens beside the pieces: those of a program, which no text becomes, and added words."""
    return [
        AddedToken(token, text, kind != USER_DEFINED)
        for token, (text, kind) in enumerate(zip(*vocabulary, strict=True))
        if kind not in (NORMAL, BYTE)
    ]


def _merge(fields: Fields, text: str) -> list[str]:
    pair = text.split(" ")
    if len(pair) != 2:
        raise PretrainedError(f"{fields.file}: {key('merges')}: {text!r} must be two pieces")
    return pair


def _sentencepiece(fields: Fields, vocabulary: Vocabulary) -> dict[str, Any]:
    scores = _list(fields, "scores", float)
    if len(scores) < len(vocabulary.texts):
        raise PretrainedError(f"{fields.file}: {key('scores')} must have one score for each of {key('tokens')}")
    types = _with_unknown(fields, vocabulary)
    merges = [_merge(fields, text) for text in _list(fields, "merges", str, default=())]
    normal = [score for score, kind in zip(scores, vocabulary.types, strict=False) if kind == NORMAL]
    if not merges and len(set(normal)) < 2:
        raise PretrainedError(f"{fields.file}: {key('scores')} order no merges: all are equal; {ELSE}")
    pieces = [
        Piece(text.replace(" ", BLANK) if kind == USER_DEFINED else text, score, kind)
        for text, score, kind in zip(vocabulary.texts, scores, types, strict=False)
    ]
    model = SentencePieceModel(
        pieces=tuple(pieces),
        kind=BPE,
        has_byte_fallback=BYTE in vocabulary.types,
        charsmap=b"",
        add_dummy_prefix=_flag(fields, "add_space_prefix", default=True),
        remove_extra_whitespaces=_flag(fields, "remove_extra_whitespaces", default=False),
    )
    values = sentencepiece_values(model, {piece.text: token for token, piece in enumerate(pieces)}, ())
    if merges:  # of a tokenizer.json, which has no scores
        values["model"]["merges"] = merges
    return values


def _with_unknown(fields: Fields, vocabulary: Vocabulary) -> list[int]:
    """The types of the tokens, of which one is unknown: a converter may have taken it for one of a program."""
    types = [CONTROL if kind == UNKNOWN else kind for kind in vocabulary.types]
    flagged = [token for token, kind in enumerate(vocabulary.types) if kind == UNKNOWN]
    token = special_tokens_of(fields, vocabulary).get("unknown_token_id", flagged[0] if flagged else None)
    if token is None:
        raise PretrainedError(f"{fields.file}: {key('unknown_token_id')} is missing, and no token has type {UNKNOWN}")
    types[token] = UNKNOWN
    return types
