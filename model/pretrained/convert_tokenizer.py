"""Converts the tokenizers of Hugging Face checkpoints to a tokenizer.json (`convert_tokenizer`).

A SentencePiece model becomes an equivalent tokenizer.json: its pieces with their scores (unigram), or merges derived
from them (BPE), after a normalizer that `model.tokenizers.sentencepiece` implements exactly. The ids of pieces depend
on the family: those of the model itself (T5, Llama), shifted by fairseq's special tokens (XLM-R, mBART, NLLB), or
listed in vocab.json (Marian, M2M-100).
"""

from __future__ import annotations

import base64
import functools
import json
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from model.pretrained.files import CONFIG, TOKENIZER, TOKENIZER_CONFIG, PretrainedError, read_optional_json
from model.pretrained.sentencepiece_model import (
    CONTROL,
    NORMAL,
    UNIGRAM,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    SentencePieceModel,
    read_sentencepiece,
)
from model.pretrained.tokenizer_files import (
    FLAGS,
    T5_LANGUAGE,
    TARGET_VOCABULARY,
    AddedToken,
    added_tokens,
    class_of,
    kind_of,
    lines_of,
    listed_in,
    named_special,
    with_flags,
)
from model.tokenizer import OWN_TARGET, Tokenizer, TokenizerError
from model.tokenizers.ordinary_pieces import vocabulary_of
from model.tokenizers.sentencepiece import BLANK, SETTINGS

FAIRSEQ = ("<s>", "<pad>", "</s>", "<unk>")  # ids 0..3 before the pieces of a SentencePiece model
SPECIAL = (*FAIRSEQ, "<mask>", "<|endoftext|>", "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
EXTRA_IDS = 100  # sentinel tokens of T5, whose last token is <extra_id_0>
# Families whose byte-level vocabularies split words as GPT-2 does; others need their tokenizer.json for the pattern.
LIKE_GPT2 = ("gpt2", "roberta", "bart")
WORDPIECE_CLASSES = ("BertTokenizer", "DistilBertTokenizer")  # and their fast variants
NO_FLAGS = dict.fromkeys(FLAGS, False)
LANGUAGES = Path(__file__).with_name("fairseq_languages.toml")


def convert_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a checkpoint directory: its tokenizer.json, or converted files. T5's pieces for languages are
    special tokens: no text has them. Raises PretrainedError."""
    tokenizer = _read(path)
    if read_optional_json(path / CONFIG).get("model_type") not in ("t5", "mt5"):
        return tokenizer
    values = json.loads(tokenizer.to_json())
    added = {item["content"]: item for item in values.get("added_tokens") or ()}
    ids = {**vocabulary_of(values["model"]), **{name: item["id"] for name, item in added.items()}}
    found = {
        name: {"id": token, "content": name, **NO_FLAGS, "special": True}
        for name, token in ids.items()
        if T5_LANGUAGE.fullmatch(name)
    }
    if not found:
        return tokenizer
    items = sorted((added | found).values(), key=lambda item: int(item["id"]))
    return Tokenizer({**values, "added_tokens": items})


def tokens_before(path: Path, language: str, token: int) -> tuple[int, ...]:
    """What a directory's tokenizer puts before the name of a language that T5 reads before a text, such as a blank.
    Raises PretrainedError if the name is no token there, or changes the tokens of the text."""
    tokenizer = _read(path)
    tokenizer = tokenizer.matching_special(token) if language in tokenizer.special else tokenizer
    text = "a b"
    ids, alone = tokenizer.encode(f"{language} {text}"), tokenizer.encode(text)
    if token not in ids or ids[ids.index(token) + 1 :] != alone:
        raise PretrainedError(
            f"{path}: the tokenizer cuts {language} {text!r} into {ids}, not into {token} and {alone}"
        )
    return tuple(ids[: ids.index(token)])


def _read(path: Path) -> Tokenizer:
    try:
        if (path / TOKENIZER).is_file():
            return Tokenizer.load(path / TOKENIZER)
    except TokenizerError as error:
        raise PretrainedError(str(error)) from error
    for names, convert in FILES.items():
        if all((path / name).is_file() for name in names):
            try:
                return Tokenizer(with_flags(convert(path), path))
            except TokenizerError as error:
                raise PretrainedError(f"{path}: {error}") from error
    known = "; ".join(" and ".join(names) for names in ((TOKENIZER,), *FILES))
    raise PretrainedError(f"{path}: has no tokenizer that is covered; covered: {known}")


def read_tokenizer(file: Path) -> Tokenizer:
    """The tokenizer in a single file: a tokenizer.json, or a SentencePiece model with its own ids. Raises
    TokenizerError."""
    if file.suffix == ".json":
        return Tokenizer.load(file)
    try:
        model = read_sentencepiece(file)
        return Tokenizer(
            sentencepiece_values(model, {piece.text: token for token, piece in enumerate(model.pieces)}, ())
        )
    except (PretrainedError, TokenizerError, OSError, StopIteration) as error:
        raise TokenizerError(f"{file}: not a SentencePiece model, nor a tokenizer.json by its name: {error}") from error


def sentencepiece_values(
    model: SentencePieceModel,
    ids: Mapping[str, int],
    added: Iterable[AddedToken],
    *,
    others: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """The values of a tokenizer.json.

    ids: of the model's pieces; a piece without an id is unknown. others: all entries of vocab.json, including those
    that the model never produces but whose text can match an unknown part of the input.
    """
    unknown = next(ids[piece.text] for piece in model.pieces if piece.type == UNKNOWN)
    extra = {item.text: item for item in added}
    for piece in model.pieces:
        if piece.type in (UNKNOWN, CONTROL, UNUSED, USER_DEFINED) and piece.text in ids:
            is_special = piece.type != USER_DEFINED
            extra.setdefault(piece.text, AddedToken(ids[piece.text], piece.text, is_special))
    own: dict[str, Any] = {
        "add_dummy_prefix": model.add_dummy_prefix,
        "remove_extra_whitespaces": model.remove_extra_whitespaces,
    }
    entries = {**(others or {}), **ids, **{item.text: item.id for item in extra.values()}}
    if others is not None:
        known = 1 + max(entries.values())
        missing = [piece.text for piece in model.pieces if piece.text not in entries]
        unmatched = sorted(token for text, token in others.items() if text not in ids)
        entries |= {text: known + index for index, text in enumerate(missing)}
        own |= {"known": known, "unknown": unknown, "unmatched": unmatched}
    names = {token: text for text, token in entries.items()}
    if sorted(names) != list(range(len(names))):
        raise TokenizerError(f"ids must be 0..{len(names) - 1}, got up to {max(names)}")
    build = _unigram if model.kind == UNIGRAM else _bpe
    return tokenizer_values(
        build(model, names, unknown),
        extra.values(),
        normalizer={"type": "Sequence", SETTINGS: own, "normalizers": _normalizers(model)},
        decoder={"type": "Sequence", "decoders": _decoders(model)},
    )


def tokenizer_values(
    model: Mapping[str, Any], added: Iterable[AddedToken], *, normalizer: Any, decoder: Any, pre_tokenizer: Any = None
) -> dict[str, Any]:
    """The values of a tokenizer.json."""
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": item.id, "content": item.text, **NO_FLAGS, "special": item.is_special} for item in sorted(added)
        ],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "decoder": decoder,
        "model": model,
    }


def _normalizers(model: SentencePieceModel) -> list[dict[str, Any]]:
    """An approximation in steps of `tokenizers`; `model.tokenizers.sentencepiece` is exact."""
    steps: list[dict[str, Any]] = []
    if model.charsmap:
        steps.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(model.charsmap).decode()})
    if model.remove_extra_whitespaces:
        steps.append({"type": "Replace", "pattern": {"Regex": "^ +| +$"}, "content": ""})
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    if model.add_dummy_prefix:
        steps.append({"type": "Prepend", "prepend": BLANK})
    return [*steps, {"type": "Replace", "pattern": {"String": " "}, "content": BLANK}]


def _decoders(model: SentencePieceModel) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": BLANK}, "content": " "}]
    if model.has_byte_fallback:
        steps.append({"type": "ByteFallback"})
    steps.append({"type": "Fuse"})
    if model.add_dummy_prefix or model.remove_extra_whitespaces:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return steps


def _unigram(model: SentencePieceModel, names: Mapping[int, str], unknown: int) -> dict[str, Any]:
    """A unigram model. names: the text of each id."""
    scores = {piece.text: piece.score for piece in model.pieces}
    vocabulary = [[names[token], scores.get(names[token], 0.0)] for token in range(len(names))]
    return {"type": "Unigram", "unk_id": unknown, "vocab": vocabulary, "byte_fallback": model.has_byte_fallback}


def _bpe(model: SentencePieceModel, names: Mapping[int, str], unknown: int) -> dict[str, Any]:
    """A BPE model. SentencePiece merges the neighbours with the best-scoring result; the merges here list every
    split of each piece, best pieces first."""
    if any(piece.type == UNUSED for piece in model.pieces):
        raise TokenizerError("a BPE model with unused pieces is not covered")
    joined = {piece.text: piece.score for piece in model.pieces if piece.type == NORMAL}
    merges = []
    for text in sorted(joined, key=lambda text: -joined[text]):
        splits = [(text[:index], text[index:]) for index in range(1, len(text))]
        merges += [list(split) for split in splits if split[0] in joined and split[1] in joined]
    return {
        "type": "BPE",
        "unk_token": names[unknown],
        "fuse_unk": True,
        "byte_fallback": model.has_byte_fallback,
        "vocab": {names[token]: token for token in range(len(names))},
        "merges": merges,
    }


def _plain(name: str, path: Path) -> dict[str, Any]:
    """T5, Llama, Mistral, Gemma: ids of the SentencePiece model, then added tokens."""
    model = read_sentencepiece(path / name)
    ids = {piece.text: token for token, piece in enumerate(model.pieces)}
    config, added = read_optional_json(path / TOKENIZER_CONFIG), added_tokens(path)
    if name == "spiece.model" and not any(item.id >= len(ids) for item in added):
        count = config.get("extra_ids", EXTRA_IDS)
        added += [AddedToken(len(ids) + index, f"<extra_id_{count - 1 - index}>") for index in range(count)]
    return sentencepiece_values(model, ids, added)


def _fairseq(path: Path) -> dict[str, Any]:
    """XLM-R, mBART, NLLB: four special tokens, then pieces, languages and <mask>."""
    model = read_sentencepiece(path / "sentencepiece.bpe.model")
    ids = {text: token for token, text in enumerate((*FAIRSEQ, *(piece.text for piece in model.pieces[3:])))}
    added, kind = added_tokens(path), kind_of(path)
    if not any(item.id >= len(ids) for item in added):
        names = named_special(path)
        if kind in ("mbart", "mbart50"):
            names = _languages(kind)
        elif kind.startswith("nllb") and not names:
            raise TokenizerError("no file lists the languages; save the tokenizer with a tokenizer.json")
        names = [name for name in names if name not in ids and name != "<mask>"] if kind != "xlm-roberta" else []
        added += [AddedToken(len(ids) + index, name) for index, name in enumerate((*names, "<mask>"))]
    added += [AddedToken(token, text) for token, text in enumerate(FAIRSEQ)]
    return sentencepiece_values(model, ids, added)


def _m2m(path: Path) -> dict[str, Any]:
    """M2M-100: ids from vocab.json, then the languages."""
    model, listed = read_sentencepiece(path / "sentencepiece.bpe.model"), listed_in(path)
    added = added_tokens(path)
    if not any(item.text.startswith("__") for item in added):
        names = [name for name in named_special(path) if name.startswith("__")]
        codes = read_optional_json(path / TOKENIZER_CONFIG).get("language_codes", "m2m100")
        if not names and codes != "m2m100":
            raise TokenizerError(f"language_codes {codes!r} are not known; save it with a tokenizer.json")
        names = names or [f"__{code}__" for code in _languages("m2m100")]
        added += [AddedToken(len(listed) + index, name) for index, name in enumerate(names)]
    added += [AddedToken(listed[name], name) for name in FAIRSEQ if name in listed]
    return _looked_up(model, listed, added)


def _marian(path: Path) -> dict[str, Any]:
    """Marian: vocab.json for the pieces of two SentencePiece models, one for sources and one for targets; with
    `separate_vocabs` those of targets have ids of their own, in target_vocab.json."""
    parts, added, listed = ["normalizer", "model", "decoder"], added_tokens(path), listed_in(path)
    source = _of_marian(path / "source.spm", listed, added)
    if is_separate := bool(read_optional_json(path / TOKENIZER_CONFIG).get("separate_vocabs")):
        parts, listed = [*parts, "added_tokens"], listed_in(path, TARGET_VOCABULARY)
        added = [item._replace(id=listed[item.text]) for item in added if item.text in listed]
    target = _of_marian(path / "target.spm", listed, added)
    source["model"][OWN_TARGET] = {name: target[name] for name in parts}
    return source if is_separate else {**source, "decoder": target["decoder"]}


def _of_marian(file: Path, listed: Mapping[str, int], added: Sequence[AddedToken]) -> dict[str, Any]:
    """One side: a SentencePiece model and the ids of its pieces; target languages are special tokens, too."""
    found = [item for item in added if item.text in listed]
    found += [AddedToken(listed[name], name) for name in ("</s>", "<unk>", "<pad>", "<s>") if name in listed]
    languages = [name for name in listed if name.startswith(">>") and name.endswith("<<")]
    found += [AddedToken(listed[name], name) for name in languages]
    return _looked_up(read_sentencepiece(file), listed, found)


def _looked_up(model: SentencePieceModel, listed: Mapping[str, int], added: Sequence[AddedToken]) -> dict[str, Any]:
    """The values of a tokenizer.json with piece ids from vocab.json (`listed`), which may have other entries too."""
    if "<unk>" not in listed:
        raise TokenizerError("vocab.json: must have an id of <unk>, and target_vocab.json where there is one")
    special = {item.text for item in added}
    ids = {
        piece.text: listed[piece.text]
        for piece in model.pieces
        if piece.text in listed and (piece.type == UNKNOWN or piece.text not in special)
    }
    return sentencepiece_values(model, ids, added, others=listed)


def _byte_level(path: Path) -> dict[str, Any]:
    """GPT-2, RoBERTa, BART: a byte-level vocabulary and its merges."""
    kind = kind_of(path)
    if kind and not kind.startswith(LIKE_GPT2):
        raise TokenizerError(
            f"vocab.json and merges.txt do not define how {kind} splits words; save it with a tokenizer.json"
        )
    listed = listed_in(path)
    merges = [
        line.split(" ") for line in lines_of(path / "merges.txt") if line.strip() and not line.startswith("#version")
    ]
    if any(len(pair) != 2 for pair in merges):
        raise TokenizerError("merges.txt: must have two pieces on each line")
    has_blank = bool(read_optional_json(path / TOKENIZER_CONFIG).get("add_prefix_space", False))
    by_byte = {"type": "ByteLevel", "add_prefix_space": has_blank, "trim_offsets": False, "use_regex": True}
    model = {"type": "BPE", "vocab": listed, "merges": merges}
    return tokenizer_values(model, _special(path, listed), normalizer=None, decoder=by_byte, pre_tokenizer=by_byte)


def _wordpiece(path: Path) -> dict[str, Any]:
    """BERT, DistilBERT: WordPiece."""
    config = read_optional_json(path / TOKENIZER_CONFIG)
    if not config.get("do_basic_tokenize", True):
        raise TokenizerError(f"{TOKENIZER_CONFIG}: do_basic_tokenize false is not covered")
    for name, value, covered in (
        ("tokenizer_class", class_of(path), WORDPIECE_CLASSES),
        ("word_tokenizer_type", config.get("word_tokenizer_type"), ("basic",)),
        ("subword_tokenizer_type", config.get("subword_tokenizer_type"), ("wordpiece",)),
    ):
        if value and value not in covered:
            raise TokenizerError(
                f"{name} {value} with vocab.txt is not covered: the file does not define how it splits words; covered: "
                f"{', '.join(covered)}; save it with a {TOKENIZER}"
            )
    lines = lines_of(path / "vocab.txt")
    listed = {line: token for token, line in enumerate(lines[:-1] if not lines[-1] else lines)}
    model = {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": listed,
    }
    normalizer = {
        "type": "BertNormalizer",
        "clean_text": True,
        "handle_chinese_chars": config.get("tokenize_chinese_chars", True),
        "strip_accents": config.get("strip_accents"),
        "lowercase": config.get("do_lower_case", True),
    }
    return tokenizer_values(
        model,
        _special(path, listed),
        normalizer=normalizer,
        decoder={"type": "WordPiece", "prefix": "##", "cleanup": True},
        pre_tokenizer={"type": "BertPreTokenizer"},
    )


FILES: dict[tuple[str, ...], Callable[[Path], dict[str, Any]]] = {
    ("source.spm", "target.spm", "vocab.json"): _marian,
    ("sentencepiece.bpe.model", "vocab.json"): _m2m,
    ("sentencepiece.bpe.model",): _fairseq,
    ("spiece.model",): functools.partial(_plain, "spiece.model"),
    ("tokenizer.model",): functools.partial(_plain, "tokenizer.model"),
    ("vocab.json", "merges.txt"): _byte_level,
    ("vocab.txt",): _wordpiece,
}
"""The files of a tokenizer → the function that converts them."""


def _languages(kind: str) -> list[str]:
    codes: str = tomllib.loads(LANGUAGES.read_text(encoding="utf-8"))[kind]
    return codes.split()


def _special(path: Path, listed: Mapping[str, int]) -> Iterable[AddedToken]:
    """The added tokens of a directory, and the special tokens that its vocabulary lists."""
    names = {*SPECIAL, *named_special(path)}
    added = {item.text: item for item in added_tokens(path)}
    added |= {name: AddedToken(listed[name], name) for name in names if name in listed and name not in added}
    return added.values()
