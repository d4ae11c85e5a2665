"""Converts a directory written by Hugging Face's `save_pretrained`: to a configuration and weights (`import_model`), or
to a checkpoint with tokenizer and lineage (`import_checkpoint`).

The `model_type` of its `config.json` selects the family. Unsupported values are rejected with the field and its value.
An imported checkpoint has no TrainConfig and no metrics.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from model.architecture_config import SourceUnit
from model.architectures import build
from model.checkpoints.atomic_write import digest_of_file
from model.checkpoints.checkpoint import check_new, save_checkpoint
from model.config import ConfigError, ModelConfig
from model.pretrained import decoder, encoder, encoder_decoder
from model.pretrained.chat import OTHER_TEMPLATES, TEMPLATE_FILE, Chat, chat_of, with_ends_of_turns
from model.pretrained.field_rules import (
    check_fields,
    check_tokenizer_fields,
    check_unread,
    options_of,
    unknown_fields,
)
from model.pretrained.files import (
    CONFIG,
    GENERATION_CONFIG,
    TOKENIZER_CONFIG,
    Family,
    Fields,
    Imported,
    NeedsWeightsError,
    NoWeights,
    PretrainedError,
    Stored,
    Weights,
    check_folder,
    load_weights,
    read_configuration,
    read_json,
    read_optional_json,
    weight_files,
)
from model.pretrained.frame import with_source_frame
from model.pretrained.marian.model import MODEL_TYPE as MARIAN
from model.pretrained.marian.model import marian_nmt
from model.pretrained.own_languages import with_own_languages
from model.pretrained.sentence_vectors import check_prompts, module_files, sentence_vectors, with_sentence_vectors
from model.pretrained.special_tokens import added_tokens_of, with_languages, with_special_tokens, with_vocabularies
from model.pretrained.text_part import LEFT_OUT, has_text_part
from model.pretrained.tokenizer_files import TARGET_VOCABULARY
from model.pretrained.translators import check_translator
from model.prompts.templates import Templates
from model.prompts.translation_template import TranslationTemplate
from model.tokenizer import Tokenizer
from model.training.report import table

MAX_LENGTH = 4096  # default context in tokens: position tables and KV caches grow with it
FAMILIES = decoder.FAMILIES | encoder_decoder.FAMILIES | encoder.FAMILIES | {MARIAN: marian_nmt}  # by model_type
SENTENCE_FAMILIES = (MARIAN, "marian", "mbart", "m2m_100")  # trained to translate sentences, as others with languages
MISSING = {  # by model_type, what a family would need
    "t5gemma": "attention to a source with soft caps, and norms around its sublayer, are those of no covered family",
}
TARGET_SIZE = "decoder_vocab_size"  # of Marian, whose vocab_size then is that of sources
CHATS = (TEMPLATE_FILE, f"{OTHER_TEMPLATES}/*.jinja")
DESCRIPTIONS = ("*.json", "*.txt", "*.model", "*.spm", *CHATS)  # configuration and tokenizer files


def import_model(
    path: Path, *, allow_pickle: bool = False, eos_id: int | None = None, stored: Stored | None = None
) -> Imported:
    """The model in a directory. Raises PretrainedError.

    eos_id: the only end-of-sequence token, instead of those in the files. stored: its weights, if they are elsewhere.
    """
    if not path.is_dir():
        raise PretrainedError(f"{path}: no such directory; give one that save_pretrained has written")
    check_configuration(path, eos_id=eos_id)  # before weights are read
    config, generation = read_configuration(path)
    weights = stored.load() if stored else load_weights(path, allow_pickle=allow_pickle)
    imported = _of_family(config, generation, weights, eos_id)
    options, unknown = options_of(config, generation), unknown_fields(config, generation, path)
    imported = replace(imported, options=options, unknown=unknown)
    try:
        return with_sentence_vectors(with_special_tokens(imported, path), path, allow_pickle=allow_pickle)
    except ConfigError as error:
        raise PretrainedError(f"{CONFIG}: the model is not covered: {error}") from error


def check_configuration(path: Path, *, eos_id: int | None = None) -> None:
    """Raises PretrainedError for a model that its config.json and generation_config.json exclude, as far as that is
    known without weights: before they are fetched. eos_id: as of `import_model`."""
    check_folder(path)
    check_tokenizer_fields(path)
    sentence_vectors(path)
    chat_of(path)
    with contextlib.suppress(NeedsWeightsError):
        _of_family(*read_configuration(path), NoWeights(), eos_id)


def check_vocabulary(path: Path, tokenizer: Tokenizer) -> None:
    """Raises PretrainedError for a tokenizer with more entries than its model, or with another number of vocabularies.
    Needs no weights."""
    config = read_configuration(path)[0]
    size, is_shared = config.count("vocab_size"), config.get("share_encoder_decoder_embeddings", True)
    sizes = {"vocab_size": size, TARGET_SIZE: config.get(TARGET_SIZE, size)}
    if tokenizer.has_two_vocabularies and is_shared:
        raise PretrainedError(
            f"{CONFIG}: share_encoder_decoder_embeddings true contradicts separate_vocabs true of {TOKENIZER_CONFIG}: "
            "one table has no rows of two vocabularies; correct one of them"
        )
    if not tokenizer.has_two_vocabularies and sizes[TARGET_SIZE] != size:
        raise PretrainedError(
            f"{CONFIG}: {TARGET_SIZE} {sizes[TARGET_SIZE]} needs a vocabulary of targets, vocab_size is {size}: put "
            f"{TARGET_VOCABULARY} into the directory, and separate_vocabs true into {TOKENIZER_CONFIG}"
        )
    for (name, most), side in zip(sizes.items(), (tokenizer, tokenizer.target), strict=True):
        if side.vocab_size > most:
            raise PretrainedError(
                f"{CONFIG}: {name} {most} is less than the {side.vocab_size} entries of the tokenizer"
            )


def _of_family(config: Fields, generation: Fields, weights: Weights, eos_id: int | None) -> Imported:
    if eos_id is not None:
        config = config.with_value("eos_token_id", eos_id)
        generation = generation.with_value("eos_token_id", eos_id) if generation else generation
    _check_covered(config, generation)
    try:
        imported = family_of(config)(config, generation, weights)
    except ConfigError as error:
        raise PretrainedError(f"{CONFIG}: the model is not covered: {error}") from error
    check_unread(config)
    weights.finish()
    return imported


def family_of(config: Fields) -> Family:
    """The family by model_type, and by the direction in which a decoder's layers attend."""
    kind, direction = config.need("model_type"), "use_bidirectional_attention"
    if not config.get(direction, False):
        return FAMILIES[kind]
    if kind not in encoder.BIDIRECTIONAL:
        raise config.refuse(direction, f"covered: of {', '.join(encoder.BIDIRECTIONAL)}")
    return encoder.BIDIRECTIONAL[kind]


def _check_covered(config: Fields, generation: Fields) -> None:
    """Raises PretrainedError for what excludes a model of every family."""
    kind = config.need("model_type")
    if kind not in FAMILIES:
        reason = f": {MISSING[kind]}" if kind in MISSING else ""
        covered = ", ".join(sorted(FAMILIES))
        raise PretrainedError(f"{CONFIG}: model_type {kind!r} is not covered{reason}; covered: {covered}")
    check_fields(config, generation)


@dataclass(frozen=True, kw_only=True)
class ImportedCheckpoint:
    """Summary of an import. max_source_len and max_target_len are those of the original; options, unknown: see
    `Imported`. chat: of a model that generates."""

    config: ModelConfig
    parameters: int
    max_source_len: int
    max_target_len: int
    lineage: dict[str, Any]
    options: Mapping[str, Any]
    unknown: tuple[str, ...]
    chat: Chat
    translation: TranslationTemplate | None = None


def import_checkpoint(
    source: Path,
    out: Path,
    tokenizer: Tokenizer,
    *,
    allow_pickle: bool = False,
    max_length: int = MAX_LENGTH,
    eos_id: int | None = None,
    source_unit: SourceUnit | None = None,
    translation: TranslationTemplate | None = None,
    origin: Mapping[str, str] | None = None,
    stored: Stored | None = None,
) -> ImportedCheckpoint:
    """Writes the checkpoint `out`.

    max_length: maximum context in tokens. eos_id: the only end-of-sequence token, instead of those in the source files.
    source_unit: what a model that translates reads at a time; None: by its family. translation: how a model without an
    encoder is asked to translate. origin, stored: see `lineage_of`.
    Raises PretrainedError for an unsupported source, CheckpointError if `out` exists or cannot be written.
    """
    check_new(out)
    theirs = import_model(source, allow_pickle=allow_pickle, eos_id=eos_id, stored=stored)
    check_vocabulary(source, tokenizer)
    check_prompts(theirs.config, tokenizer)
    ours = with_languages(with_vocabularies(theirs, source, tokenizer), source, added_tokens_of(tokenizer))
    ours = with_source_frame(ours, source).shortened(max_length)
    ours = replace(ours, config=with_source_unit(ours.config, source_unit, read_json(source / CONFIG)["model_type"]))
    name = (origin or (stored.origin if stored else {})).get("imported_from", source.resolve().name)
    named = with_own_languages(ours.config, source, name, stored.files if stored else ())
    ours = replace(ours, config=named)
    chat = chat_of(source) if ours.config.architecture == "decoder" else Chat()
    check_translator(translation, ours.config, chat.template, tokenizer)
    if chat.template is not None and eos_id is None:
        ours = with_ends_of_turns(ours, chat.template, tokenizer)
    with torch.device("meta"):  # tied weights once
        weights = {name: ours.weights[name] for name, _ in build(ours.config).named_parameters()}
    lineage = lineage_of(source, origin, stored)
    parameters = sum(tensor.numel() for tensor in weights.values())
    save_checkpoint(
        out,
        ours.config,
        weights,
        tokenizer=tokenizer,
        train=None,
        metrics={},
        lineage=lineage,
        extra={
            "model_card.md": model_card(ours.config, parameters, lineage).encode(),
            **Templates(chat.template, translation).files(),
            **(stored.extra if stored else {}),
        },
    )
    return ImportedCheckpoint(
        config=ours.config,
        parameters=parameters,
        max_source_len=theirs.config.max_source_len,
        max_target_len=theirs.config.max_target_len,
        lineage=lineage,
        options=theirs.options,
        unknown=theirs.unknown,
        chat=chat,
        translation=translation,
    )


def with_source_unit(config: ModelConfig, unit: SourceUnit | None, family: str) -> ModelConfig:
    """The configuration with what a model that translates reads at a time. family: decides if `unit` is None. Raises
    PretrainedError for the unit of another model."""
    if config.has_encoder and config.has_decoder:
        reads_sentences = family in SENTENCE_FAMILIES or bool(config.template.languages)
        return config.replace(source_unit=unit or ("sentence" if reads_sentences else "text"))
    if unit is not None:
        raise PretrainedError(f"source_unit: must be left out, a {family} model translates nothing; got {unit}")
    return config


def lineage_of(source: Path, origin: Mapping[str, str] | None = None, stored: Stored | None = None) -> dict[str, Any]:
    """The lineage of an import: the original model and the digests of its files. origin: where the directory comes
    from, `imported_from` among it; None: that is its name. stored: the files from which the directory was made."""
    config = read_json(source / CONFIG)
    if stored is not None:
        files = {file.name: file for file in stored.files}
    else:
        configurations, folders = module_files(source)
        found = {file for pattern in DESCRIPTIONS for file in source.glob(pattern)} | set(weight_files(source))
        found |= {source / name for name in configurations if (source / name).is_file()}
        found |= {file for name in folders for file in weight_files((source / name).parent)}
        files = {file.relative_to(source).as_posix(): file for file in sorted(found)}
    return {
        **(origin or {"imported_from": source.resolve().name}),
        "model_type": config["model_type"],
        "transformers_version": config.get("transformers_version"),
        **({"left_out": LEFT_OUT} if has_text_part(config) else {}),
        "files_sha256": {name: digest_of_file(file) for name, file in files.items()},
        "generation_config": read_optional_json(source / GENERATION_CONFIG),
        "versions": {name: metadata.version(name) for name in ("torch", "tokenizers", "safetensors")},
    }


def model_card(model: ModelConfig, parameters: int, lineage: dict[str, Any]) -> str:
    """The model card in Markdown."""
    origin = {name: value for name, value in lineage.items() if not isinstance(value, dict)}
    parts = [
        f"# {lineage['imported_from']}",
        f"A {lineage['model_type']} model with {parameters:,} parameters that Glossa imported and did not train.",
        table("Lineage", origin),
        table("Files (SHA-256)", lineage["files_sha256"]),
        table("Versions", lineage["versions"]),
        table("Model", model.to_json()),
    ]
    return "\n\n".join(parts) + "\n"
