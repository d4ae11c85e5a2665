"""The small files of a checkpoint's tokenizer: its class, vocabulary, added and special tokens.

`model.pretrained.convert_tokenizer` makes a tokenizer.json of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from model.pretrained.files import (
    CONFIG,
    SPECIAL_TOKENS_MAP,
    TOKENIZER_CONFIG,
    PretrainedError,
    read_optional_json,
)
from model.tokenizer import TokenizerError

TARGET_VOCABULARY = "target_vocab.json"  # of Marian with separate_vocabs
FLAGS = ("single_word", "lstrip", "rstrip", "normalized")  # of an added token: how texts match it
MASK = "<mask>"
# As in MADLAD-400 (Kudugunta et al. 2023): <2de>, <2zh_Latn>, <2en_xx_simple>; but no <2translate>, no script alone
T5_LANGUAGE = re.compile("<2([a-z]{2,3}(?:[_-][A-Za-z0-9]{1,8})*)>")
# Families whose class lets <mask> absorb the blanks before it, unless a file says otherwise
MASK_ABSORBS = ("roberta", "bart", "xlm-roberta", "camembert", "barthez", "mbart", "mbart50", "nllb")

# Special tokens of the tokenizers' classes, which no file of the original checkpoints names
BERT = {"cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]", "mask_token": "[MASK]"}
ROBERTA = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "cls_token": "<s>",
    "sep_token": "</s>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
}
T5 = {"eos_token": "</s>"}
CLASS_TOKENS = {  # by the class's family
    "bert": BERT,
    "distilbert": BERT,
    "albert": {**BERT, "unk_token": "<unk>"},
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert", "bart", "barthez"), ROBERTA),
    "t5": T5,
    "mt5": T5,
}


class AddedToken(NamedTuple):
    """A token beside the vocabulary of a model, or of it and special."""

    id: int
    text: str
    is_special: bool = True


def lines_of(file: Path) -> list[str]:
    """The lines of a text file; the last one is empty if the file ends with a line break."""
    try:
        return [line.rstrip("\r") for line in file.read_text(encoding="utf-8").split("\n")]
    except (OSError, UnicodeDecodeError) as error:
        raise PretrainedError(f"{file}: cannot be read: {error}") from error


def listed_in(path: Path, name: str = "vocab.json") -> dict[str, int]:
    """The ids of vocab.json, or of another such file. Raises TokenizerError."""
    values = read_optional_json(path / name)
    if not values or not all(type(token) is int and token >= 0 for token in values.values()):
        reason = f": {TOKENIZER_CONFIG} has separate_vocabs true" if name == TARGET_VOCABULARY else ""
        raise TokenizerError(f"{name}: must give each piece an id{reason}")
    return values


def class_of(path: Path) -> str:
    """The tokenizer's class without "Fast", of tokenizer_config.json, else of config.json; "" if neither names one."""
    files = (read_optional_json(path / name) for name in (TOKENIZER_CONFIG, CONFIG))
    return str(next(filter(None, (values.get("tokenizer_class") for values in files)), "")).removesuffix("Fast")


def kind_of(path: Path) -> str:
    """The family in lower case, from tokenizer_class or, if it is missing, model_type; "" if both are missing."""
    family = class_of(path).removesuffix("Tokenizer").lower()
    return {"xlmroberta": "xlm-roberta"}.get(family, family) or str(
        read_optional_json(path / CONFIG).get("model_type") or ""
    )


def added_tokens(path: Path) -> list[AddedToken]:
    """Added tokens with their ids, from tokenizer_config.json and added_tokens.json."""
    listed = read_optional_json(path / TOKENIZER_CONFIG).get("added_tokens_decoder") or {}
    found = {
        item["content"]: AddedToken(int(token), item["content"], bool(item.get("special")))
        for token, item in listed.items()
    }
    special = set(named_special(path))
    for text, token in read_optional_json(path / "added_tokens.json").items():
        found.setdefault(text, AddedToken(token, text, text in special))
    return list(found.values())


def named_special(path: Path) -> list[str]:
    """Texts of the special tokens that configuration files name, in order, without duplicates."""
    return list(dict.fromkeys(filter(None, map(text_of, _special_values(path)))))


def _special_values(path: Path) -> list[Any]:
    """The special tokens in configuration files: strings and objects."""
    found: list[Any] = []
    for values in (read_optional_json(path / SPECIAL_TOKENS_MAP), read_optional_json(path / TOKENIZER_CONFIG)):
        for key, value in values.items():
            if key.endswith("_token") or key in ("additional_special_tokens", "extra_special_tokens"):
                found += value if isinstance(value, list) else [value]
    return found


def special_texts(path: Path) -> dict[str, str]:
    """The texts of special tokens by their roles, such as `cls_token`: those of the class, overridden by the files.

    special_tokens_map.json decides, unless tokenizer_config.json lists the added tokens: transformers 5 does not read
    it then.
    """
    is_fairseq = (path / "sentencepiece.bpe.model").is_file()
    texts = dict(ROBERTA if is_fairseq else CLASS_TOKENS.get(kind_of(path), {}))
    config = read_optional_json(path / TOKENIZER_CONFIG)
    files = [config, read_optional_json(path / SPECIAL_TOKENS_MAP)]
    for values in reversed(files) if "added_tokens_decoder" in config else files:
        texts |= {key: text for key, value in values.items() if (text := text_of(value))}
    return texts


def text_of(token: Any) -> str:
    """The text of a token that is a string or an object with `content`; "" otherwise."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else ""


def with_flags(values: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The values of a tokenizer.json whose added tokens match texts as the files of a directory, or else the class,
    declare: `<mask>` may absorb the blanks before it."""
    listed = read_optional_json(path / TOKENIZER_CONFIG).get("added_tokens_decoder") or {}
    declared = {MASK: {"lstrip": True}} if kind_of(path) in MASK_ABSORBS else {}
    for item in (*_special_values(path), *listed.values()):
        if isinstance(item, dict):
            declared[text_of(item)] = {name: bool(item[name]) for name in FLAGS if name in item}
    added = [{**item, **declared.get(item["content"], {})} for item in values["added_tokens"]]
    return {**values, "added_tokens": added}
