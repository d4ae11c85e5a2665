"""Special tokens from the tokenizer files of a checkpoint: those before every prompt, the cls, sep and mask tokens of
encoders, and the languages of multilingual models."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from model.config import SOURCE_LANGUAGE, TARGET_LANGUAGE, SpecialTokenTemplate
from model.pretrained.convert_tokenizer import convert_tokenizer
from model.pretrained.files import (
    CONFIG,
    SPECIAL_TOKENS_MAP,
    TOKENIZER,
    TOKENIZER_CONFIG,
    Fields,
    Imported,
    PretrainedError,
    read_json,
    read_optional_json,
)
from model.pretrained.tokenizer_files import kind_of, text_of

# Special tokens of the tokenizers' classes, which no file of the original checkpoints names
BERT = {"cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]", "mask_token": "[MASK]"}
ROBERTA = {"cls_token": "<s>", "sep_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"}
CLASS_TOKENS = {  # by the class's family
    "bert": BERT,
    "distilbert": BERT,
    "albert": {**BERT, "unk_token": "<unk>"},
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert", "bart", "barthez"), ROBERTA),
}
LANGUAGE_NAMES = {  # patterns of language tokens by model_type; the group is the language code
    "marian": re.compile(">>(.+)<<"),
    "mbart": re.compile("([a-z]{2}_[A-Z]{2})"),
    "m2m_100": re.compile("__([a-z]+)__|([a-z]{3}_[A-Z][a-z]{3})"),  # M2M100 and NLLB
}


def with_special_tokens(imported: Imported, path: Path) -> Imported:
    """Sets the special tokens of decoders and encoders; those of encoder-decoders are in config.json.

    Raises PretrainedError if a special token of an encoder is missing.
    """
    if imported.config.architecture == "encoder":
        return _with_encoder_tokens(imported, path)
    prefix = _prompt_prefix(path, imported.config.bos_id) if imported.config.architecture == "decoder" else None
    return imported if prefix is None else _with_template(imported, SpecialTokenTemplate(target_prefix=prefix))


def _with_template(imported: Imported, template: SpecialTokenTemplate) -> Imported:
    return replace(imported, config=imported.config.replace(special_token_template=template))


def _prompt_prefix(path: Path, bos_id: int) -> tuple[int, ...] | None:
    if (path / TOKENIZER_CONFIG).is_file():
        adds = Fields(read_json(path / TOKENIZER_CONFIG), file=TOKENIZER_CONFIG).get("add_bos_token", None)
        if isinstance(adds, bool):
            return (bos_id,) if adds else ()
    if not (path / TOKENIZER).is_file():
        return None
    processor = Fields(read_json(path / TOKENIZER), file=TOKENIZER).inner("post_processor")
    steps = [Fields(step, file=f"{TOKENIZER}: post_processor") for step in processor.get("processors", [])]
    prefix: list[int] = []
    for step in steps or [processor]:
        if step.only("type", "ByteLevel", "TemplateProcessing", default="ByteLevel") == "TemplateProcessing":
            *before, text = step.need("single")  # the text must be the last element
            if "Sequence" not in text:
                raise step.refuse("single", "tokens after a prompt would end it")
            special = step.inner("special_tokens")
            prefix += [token for piece in before for token in special.need(piece["SpecialToken"]["id"])["ids"]]
    return tuple(prefix)


def _with_encoder_tokens(imported: Imported, path: Path) -> Imported:
    model = imported.config
    texts, special = special_texts(path), convert_tokenizer(path).special
    ids: dict[str, Any] = {name: special.get(texts.get(f"{name}_token", "")) for name in ("cls", "sep", "unk", "mask")}
    for name in ("cls", "sep", *(("mask",) if model.head == "masked" else ())):
        if ids[name] is None:
            raise PretrainedError(
                f"{path}: the id of {name}_token is missing: {TOKENIZER_CONFIG} and {SPECIAL_TOKENS_MAP} name none "
                "that the vocabulary has; save the model with its tokenizer"
            )
    config = model.replace(
        bos_id=ids["cls"],
        eos_id=ids["sep"],
        unk_id=model.unk_id if ids["unk"] is None else ids["unk"],
        mask_id=ids["mask"],
        special_token_template=SpecialTokenTemplate(source_prefix=(ids["cls"],), source_suffix=(ids["sep"],)),
    )
    return replace(imported, config=config)


def special_texts(path: Path) -> dict[str, str]:
    """The texts of special tokens by their roles, such as `cls_token`: those of the class, overridden by the files."""
    is_fairseq = (path / "sentencepiece.bpe.model").is_file()
    texts = dict(ROBERTA if is_fairseq else CLASS_TOKENS.get(kind_of(path), {}))
    for file in (SPECIAL_TOKENS_MAP, TOKENIZER_CONFIG):
        texts |= {key: text for key, value in read_optional_json(path / file).items() if (text := text_of(value))}
    return texts


def with_languages(imported: Imported, path: Path, special: Mapping[str, int]) -> Imported:
    """Adds the tokenizer's language tokens to the special-token template of a multilingual model.

    path: the model's directory. special: ids of the special tokens by name. A model with fewer than two languages is
    returned unchanged.
    """
    config = Fields(read_json(path / CONFIG))
    tokenizer = Fields(read_optional_json(path / TOKENIZER_CONFIG), file=TOKENIZER_CONFIG)
    kind, eos, known = config.need("model_type"), imported.config.eos_id, imported.config.template
    pattern = LANGUAGE_NAMES.get(kind)
    found = {
        match[match.lastindex or 1]: token
        for name, token in special.items()
        if pattern and (match := pattern.fullmatch(name))
    }
    if len(found) < 2:
        return imported
    start, named = known.target_prefix[:1], tokenizer.get("tokenizer_class", config.get("tokenizer_class", ""))
    around: tuple[tuple[int, ...], ...]
    if kind == "marian":  # the target language precedes the source
        around = (TARGET_LANGUAGE,), (eos,), known.target_prefix
    elif kind == "mbart" and not named.startswith("MBart50"):
        around = (), (eos, SOURCE_LANGUAGE), (TARGET_LANGUAGE,)
    elif tokenizer.get("legacy_behaviour", False):
        around = (), (eos, SOURCE_LANGUAGE), (*start, TARGET_LANGUAGE)
    else:
        around = (SOURCE_LANGUAGE,), (eos,), (*start, TARGET_LANGUAGE)
    source_prefix, source_suffix, target_prefix = around
    template = SpecialTokenTemplate(
        source_prefix=source_prefix,
        source_suffix=source_suffix,
        target_prefix=target_prefix,
        languages=tuple(sorted(found.items(), key=lambda language: language[1])),
    )
    return _with_template(imported, template)
