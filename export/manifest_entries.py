"""Manifest entries derived from a model's configuration."""

from __future__ import annotations

from typing import Any

from export.bundle.manifest import (
    SOURCE_LANGUAGE,
    TARGET_LANGUAGE,
    AlignmentSpec,
    Context,
    Encoding,
    SourceUnit,
    SpecialTokenTemplate,
    Task,
    Tokens,
)
from export.graphs.attention import seen_attention
from export.limits import limits_of
from model.architecture_config import EncoderConfig
from model.config import DEFAULT_LANGUAGES, LanguagePair, ModelConfig
from model.config import SOURCE_LANGUAGE as SOURCE_ID
from model.config import TARGET_LANGUAGE as TARGET_ID
from model.config_parts import unnamed_languages


def entries_of(
    config: ModelConfig,
    *,
    attention: bool,
    source_unit: SourceUnit | None = None,
    languages: LanguagePair = DEFAULT_LANGUAGES,
) -> dict[str, Any]:
    """Return all entries by `Manifest` field name.

    attention: whether the bundle has graphs that return attention. source_unit, languages: instead of
    those of the configuration.
    """
    task: Task = "encoding"
    if config.has_decoder:
        task = "translation" if config.has_encoder else "generation"
    encoding = Encoding(
        width=config.source_dim,
        has_pooler=config.pooler != "none",
        **(vectors_of(config) if isinstance(config, EncoderConfig) else {}),
        mask=config.mask_id if config.head == "masked" else None,
        labels=config.labels,
        multi_label=config.multi_label,
        has_token_weights=config.head == "attention",
        has_token_labels=config.is_tagger,
    )
    names = {SOURCE_ID: SOURCE_LANGUAGE, TARGET_ID: TARGET_LANGUAGE}
    special_tokens = {
        name: tuple(names.get(token, token) for token in getattr(config.template, name))
        for name in ("source_prefix", "source_suffix", "target_prefix")
    }
    source_language, target_language = languages_of(config, languages)
    return {
        "architecture": config.architecture,
        "task": task,
        "tokens": Tokens(
            pad=config.pad_id, bos=config.bos_id, eos=config.eos_id, unk=config.unk_id, extra_eos=config.extra_eos_ids
        ),
        "template": SpecialTokenTemplate(**special_tokens, languages=dict(config.template.languages)),
        "limits": limits_of(config),
        "source_unit": source_unit or config.source_unit,
        "source_language": source_language,
        "target_language": target_language,
        "context": context_of(config),
        "alignment": alignment_of(config) if attention and config.has_encoder and config.has_decoder else None,
        "encoding": encoding if config.has_encoder else None,
        "attention_maps": seen_attention(config) if attention else (),
    }


def languages_of(config: ModelConfig, given: LanguagePair = DEFAULT_LANGUAGES) -> LanguagePair:
    """Return the languages of a model that requests need not name; "" for others, and those that are unknown. given:
    instead of those of the configuration."""
    pair = LanguagePair(given.source or config.source_language, given.target or config.target_language)
    return unnamed_languages(config.template, pair)


def vectors_of(config: EncoderConfig) -> dict[str, Any]:
    """Return what the vector of a text is, by `Encoding` field name."""
    return {
        "pooling": config.pooling,
        "dense_width": config.vector_size if config.dense else 0,
        "normalized": config.normalized,
        "prompts": dict(config.prompts),
        "default_prompt": config.default_prompt,
        "pools_prompt": config.pools_prompt,
    }


def context_of(config: ModelConfig) -> Context | None:
    """Return the context that a model was trained with; None if it was trained without."""
    if config.separator_id is None or not config.context_sentences:
        return None
    return Context(sentences=config.context_sentences, separator=config.separator_id)


def alignment_of(config: ModelConfig) -> AlignmentSpec:
    """Return what `align` returns for a model, and the default layer for word alignment.

    The default is the penultimate layer (Garg et al. 2019, "Jointly Learning to Align and Translate with Transformer
    Models"), if the model has more than one.
    """
    if config.is_recurrent:
        return AlignmentSpec(layers=1, heads=1, default_layer=1)
    layers = config.num_decoder_layers
    return AlignmentSpec(layers=layers, heads=config.num_heads, default_layer=layers - 1 if layers >= 3 else layers)
