"""The tokens that the tokenizer of a checkpoint puts around a text, as `AutoTokenizer` of transformers 5 does.

Some classes set them, whatever the files say. Of the others, the post-processor of the tokenizer.json decides, and
`add_bos_token` and `add_eos_token` of tokenizer_config.json where there is no such file.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from model.config import SOURCE_LANGUAGE, TARGET_LANGUAGE, ModelConfig
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
from model.pretrained.tokenizer_files import class_of, special_texts


class Frame(NamedTuple):
    """Ids before and after a text."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


NOTHING = Frame()
Roles = tuple[tuple[str, ...], tuple[str, ...]]  # of the special tokens before and after a text
CLS_SEP: Roles = (("cls_token",), ("sep_token",))
BOS_EOS: Roles = (("bos_token",), ("eos_token",))
EOS: Roles = ((), ("eos_token",))
OWN_FRAMES: dict[str, Roles] = {  # of the classes that set them
    **dict.fromkeys(("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "RobertaTokenizer"), CLS_SEP),
    **dict.fromkeys(("BartTokenizer", "AlbertTokenizer", "CamembertTokenizer", "BarthezTokenizer"), CLS_SEP),
    "XLMRobertaTokenizer": BOS_EOS,
    "T5Tokenizer": EOS,
}
FIXED_CLASSES = {"qwen2": "Qwen2Tokenizer", "phi3": "TokenizersBackend"}  # by model_type, whatever a file names
ALIASES = {"MT5Tokenizer": "T5Tokenizer"}
CLASSES = {  # by model_type, where no file names a class
    **dict.fromkeys(("bert", "distilbert"), "BertTokenizer"),
    **dict.fromkeys(("roberta", "bart"), "RobertaTokenizer"),
    "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
    **dict.fromkeys(("t5", "mt5"), "T5Tokenizer"),
    "marian": "MarianTokenizer",
    "mbart": "MBartTokenizer",
    "m2m_100": "M2M100Tokenizer",
}
# Classes by model_type that set a frame with languages: that of the family's template
LANGUAGE_CLASSES = {
    "marian": ("MarianTokenizer",),
    "mbart": ("MBartTokenizer", "MBart50Tokenizer"),
    "m2m_100": ("M2M100Tokenizer", "NllbTokenizer"),
}
# Classes that add nothing of their own
PLAIN_CLASSES = ("PreTrainedTokenizer", "TokenizersBackend", "GPT2Tokenizer", "LlamaTokenizer", "GemmaTokenizer")


def frame_of(path: Path) -> Frame:
    """The frame of a directory's tokenizer. Raises PretrainedError for a post-processor that is not covered, and for
    special tokens that the vocabulary lacks."""
    named = _class_of(path)
    if named in OWN_FRAMES:
        return _with_ids(OWN_FRAMES[named], path)
    if (path / TOKENIZER).is_file():
        return _frame_in_file(path)
    config = Fields(read_optional_json(path / TOKENIZER_CONFIG), file=TOKENIZER_CONFIG)
    before, after = ((f"{role}_token",) if config.get(f"add_{role}_token", False) else () for role in ("bos", "eos"))
    return _with_ids((before, after), path)


def _class_of(path: Path) -> str:
    kind = str(read_optional_json(path / CONFIG).get("model_type"))
    named = FIXED_CLASSES.get(kind) or class_of(path) or CLASSES.get(kind, "")
    return ALIASES.get(named, named)


def _with_ids(roles: Roles, path: Path) -> Frame:
    if not any(roles):
        return NOTHING
    texts, special = special_texts(path), convert_tokenizer(path).special
    for role in (*roles[0], *roles[1]):
        if texts.get(role, "") not in special:
            raise missing_token(path, role)
    before, after = (tuple(special[texts[role]] for role in side) for side in roles)
    return Frame(before, after)


def missing_token(path: Path, role: str) -> PretrainedError:
    """The error for a special token that no file names, or whose text the vocabulary lacks."""
    return PretrainedError(
        f"{path}: the id of {role} is missing: {TOKENIZER_CONFIG} and {SPECIAL_TOKENS_MAP} name none that the "
        "vocabulary has; save the model with its tokenizer"
    )


def with_source_frame(imported: Imported, path: Path) -> Imported:
    """Sets the tokens around a source of an encoder-decoder, whose family's template is that of its own tokenizer.

    path: the directory with the tokenizer's files. A class that no file names is the family's own. Raises
    PretrainedError for a class that is not known, and for another frame than the template's where that has languages.
    """
    if imported.config.architecture != "encoder_decoder":
        return imported
    kind, named = Fields(read_json(path / CONFIG)).need("model_type"), _class_of(path)
    has_file = (path / TOKENIZER).is_file()
    if named in LANGUAGE_CLASSES.get(kind, ()) or not (has_file or class_of(path)):
        return imported
    if not has_file and named not in OWN_FRAMES and named not in PLAIN_CLASSES:
        raise PretrainedError(
            f"{path}: tokenizer_class {named} is not covered for {kind}: no file names the tokens that it puts around "
            f"a source; save it with a {TOKENIZER}"
        )
    frame, template = frame_of(path), imported.config.template
    if template.languages:
        _check_languages(imported.config, frame, f"{path}: the tokenizer ({named or TOKENIZER})")
        return imported
    template = replace(template, source_prefix=frame.before, source_suffix=frame.after)
    return replace(imported, config=imported.config.replace(special_token_template=template))


def _check_languages(model: ModelConfig, frame: Frame, what: str) -> None:
    """Raises PretrainedError if a frame, in which some language stands for each, is not that of the template."""
    template, languages = model.template, {token for _, token in model.template.languages}
    prefix = template.source_prefix  # what stands up to a target language is of the text
    prefix = prefix[prefix.index(TARGET_LANGUAGE) + 1 :] if TARGET_LANGUAGE in prefix else prefix
    expected = prefix, template.source_suffix
    before, after = (tuple(SOURCE_LANGUAGE if token in languages else token for token in side) for side in frame)
    if (before, after) != expected:
        raise PretrainedError(
            f"{what} puts {_named(before)} before a source and {_named(after)} after it; covered with languages: "
            f"{_named(expected[0])} before, {_named(expected[1])} after"
        )


def _named(tokens: tuple[int, ...]) -> str:
    texts = ["its language" if token == SOURCE_LANGUAGE else f"token {token}" for token in tokens]
    return " and ".join(texts) or "nothing"


def _frame_in_file(path: Path) -> Frame:
    """The tokens that the post-processor of a tokenizer.json adds. Raises PretrainedError for an unknown one."""
    processor = Fields(read_json(path / TOKENIZER), file=TOKENIZER).inner("post_processor")
    steps = [Fields(step, file=processor.file) for step in processor.get("processors", [])]
    before, after = NOTHING
    for step in steps or [processor]:
        first, last = _frame_of_step(step)
        before, after = first + before, after + last
    return Frame(before, after)


def _frame_of_step(step: Fields) -> Frame:
    kinds = ("ByteLevel", "TemplateProcessing", "RobertaProcessing", "BertProcessing")
    kind = step.only("type", *kinds, default="ByteLevel")
    if kind == "ByteLevel":
        return NOTHING
    if kind != "TemplateProcessing":
        return Frame((step.need("cls")[1],), (step.need("sep")[1],))
    special, is_after = step.inner("special_tokens"), False
    sides: tuple[list[int], list[int]] = [], []
    for piece in step.need("single"):
        is_after = is_after or "Sequence" in piece
        if "SpecialToken" in piece:
            sides[is_after].extend(special.need(piece["SpecialToken"]["id"])["ids"])
    return Frame(tuple(sides[0]), tuple(sides[1]))
