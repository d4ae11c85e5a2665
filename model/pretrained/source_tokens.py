"""The tokens that the tokenizer of an encoder-decoder puts around a source, against those of the family's template.

A model read other tokens in training than the template has if its tokenizer is one of another family, as CodeT5's.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from model.config import SOURCE_LANGUAGE, TARGET_LANGUAGE, ModelConfig
from model.pretrained.files import CONFIG, TOKENIZER, Fields, PretrainedError, read_json, read_optional_json
from model.pretrained.special_tokens import CLASS_TOKENS, special_texts
from model.pretrained.tokenizer_files import class_of, kind_of

Around = tuple[tuple[int, ...], tuple[int, ...]]  # ids before and after a text
NOTHING: Around = ((), ())
# Classes by model_type that put the template's tokens around a source
OWN_CLASSES = {
    "marian": ("MarianTokenizer",),
    "bart": ("BartTokenizer",),
    "mbart": ("MBartTokenizer", "MBart50Tokenizer"),
    "m2m_100": ("M2M100Tokenizer", "NllbTokenizer"),
    "t5": ("T5Tokenizer", "MT5Tokenizer"),
    "mt5": ("T5Tokenizer", "MT5Tokenizer"),
}
# Classes of any family. One that adds nothing, as KoBART's, leaves it to its users to put the template's tokens there.
GENERIC_CLASSES = ("PreTrainedTokenizer", "TokenizersBackend")
READ_FILE = ("bart", "t5", "mt5")  # the classes of others set the tokens themselves, whatever tokenizer.json names


def check_source_tokens(model: ModelConfig, path: Path, special: Mapping[str, int]) -> None:
    """Raises PretrainedError for an encoder-decoder whose tokenizer puts other tokens around a source than the template
    of `model`, languages included.

    path: the directory with the tokenizer's files. special: ids of the special tokens by name. A class that is not
    named is the family's own.
    """
    if model.architecture != "encoder_decoder":
        return
    kind, named = Fields(read_json(path / CONFIG)).need("model_type"), class_of(path)
    is_own = not named or named in OWN_CLASSES.get(kind, ())
    in_file = _around_in_file(path) if kind in READ_FILE or not is_own else NOTHING
    if in_file == NOTHING and (is_own or named in GENERIC_CLASSES):
        return
    found = in_file if in_file != NOTHING else _around_of_class(path, special)
    template, languages = model.template, {token for _, token in model.template.languages}
    expected = tuple(token for token in template.source_prefix if token != TARGET_LANGUAGE), template.source_suffix
    if found is None:
        raise PretrainedError(
            f"{path}: tokenizer_class {named} is not covered for {kind}: no file names the tokens that it puts around "
            f"a source; save it with a {TOKENIZER}"
        )
    before, after = (tuple(SOURCE_LANGUAGE if token in languages else token for token in side) for side in found)
    if (before, after) != expected:
        raise PretrainedError(
            f"{path}: the tokenizer ({named or TOKENIZER}) puts {_named(before)} before a source and {_named(after)} "
            f"after it; covered for {kind}: {_named(expected[0])} before, {_named(expected[1])} after"
        )


def _named(tokens: tuple[int, ...]) -> str:
    texts = ["its language" if token == SOURCE_LANGUAGE else f"token {token}" for token in tokens]
    return " and ".join(texts) or "nothing"


def _around_of_class(path: Path, special: Mapping[str, int]) -> Around | None:
    """The tokens of a class without a tokenizer.json; None if they are not known."""
    if kind_of(path) not in CLASS_TOKENS:
        return None
    texts = special_texts(path)
    cls, sep = (special.get(texts[name]) for name in ("cls_token", "sep_token"))
    return None if cls is None or sep is None else ((cls,), (sep,))


def _around_in_file(path: Path) -> Around:
    """The tokens that the post-processor of a tokenizer.json adds. Raises PretrainedError for an unknown one."""
    processor = Fields(read_optional_json(path / TOKENIZER), file=TOKENIZER).inner("post_processor")
    steps = [Fields(step, file=processor.file) for step in processor.get("processors", [])]
    before, after = NOTHING
    for step in steps or [processor]:
        first, last = _around_of_step(step)
        before, after = first + before, after + last
    return before, after


def _around_of_step(step: Fields) -> Around:
    kinds = ("ByteLevel", "TemplateProcessing", "RobertaProcessing", "BertProcessing")
    kind = step.only("type", *kinds, default="ByteLevel")
    if kind == "ByteLevel":
        return NOTHING
    if kind != "TemplateProcessing":
        return (step.need("cls")[1],), (step.need("sep")[1],)
    special, is_after = step.inner("special_tokens"), False
    sides: tuple[list[int], list[int]] = [], []
    for piece in step.need("single"):
        is_after = is_after or "Sequence" in piece
        if "SpecialToken" in piece:
            sides[is_after].extend(special.need(piece["SpecialToken"]["id"])["ids"])
    return tuple(sides[0]), tuple(sides[1])
