"""A manifest → the sizes of a model that its memory is predicted from (`ModelShape`)."""

from __future__ import annotations

from collections.abc import Mapping

from export.bundle.manifest import LEAST_WORDS, MOST_WORDS, TOKENIZER, Manifest, Variant
from model.prompts.template_files import TEMPLATES
from service.memory.cache_layout import CacheLayout
from service.memory.engine_limits import EngineLimits
from service.memory.memory_prediction import ModelShape


def shape_of(
    manifest: Manifest, variant: Variant, *, opened: int, opened_later: int = 0, attention: int = 0
) -> ModelShape:
    """The sizes of a model with the graphs of one variant; see `ModelShape` for those that are given."""
    limits = manifest.limits
    width, inner, heads = widths(manifest, variant)
    tokenizer = manifest.files.get(TOKENIZER)
    each = max(LEAST_WORDS + 1, _longest_list(manifest))
    shortlist = MOST_WORDS + each * limits.max_source_len + limits.max_target_len
    return ModelShape(
        layout=CacheLayout.of(variant.states),
        vocab_size=limits.vocab_size,
        width=width,
        inner=inner,
        heads=heads,
        max_source_len=limits.max_source_len,
        max_target_len=limits.max_target_len,
        chunk_tokens=0 if limits.max_block == 1 or not limits.max_target_len else EngineLimits.chunk_tokens,
        shortlist_len=min(limits.vocab_size, shortlist) if manifest.shortlist else 0,
        opened=opened,
        opened_later=opened_later,
        tokenizer=tokenizer.bytes if tokenizer else 0,
        chat_tokenizer=tokenizer.bytes * sum(name in manifest.files for name in TEMPLATES) if tokenizer else 0,
        attention=attention,
    )


def _longest_list(manifest: Manifest) -> int:
    """The most tokens that a source's token adds to its shortlist, if that has no ranks (`Shortlist.longest`); 0: it
    has, or the manifest does not say so."""
    learned = manifest.lineage.get("shortlist")
    longest = learned.get("longest") if isinstance(learned, Mapping) else None
    return longest if isinstance(longest, int) else 0


def widths(manifest: Manifest, variant: Variant) -> tuple[int, int, int]:
    """The width of a position, that of its inner layer, and heads: those of the model that was exported, and where the
    manifest lacks it, of its states."""
    states = [[size for size in state.shape[1:] if isinstance(size, int)] for state in variant.states]
    heads = max([sizes[0] for sizes in states if len(sizes) > 1], default=1)
    width = max([heads * sizes[-1] for sizes in states if sizes], default=64)
    if manifest.encoding is not None:
        width = max(width, manifest.encoding.width)
    model = manifest.lineage.get("model")
    config: Mapping[str, object] = model if isinstance(model, Mapping) else {}

    def largest(default: int, *names: str) -> int:
        values = [value for name in names if isinstance(value := config.get(name), int)]
        return max([default, *values])

    width = largest(width, "d_model", "encoder_dim")
    experts = largest(1, "experts_per_token") if config.get("num_experts") else 1
    inner = largest(0, "d_ff", "encoder_d_ff") or 4 * width
    heads = largest(heads, "num_heads", "encoder_num_heads")
    # A window in both directions is a map of scores that all heads share, and computed from maps of positions: together
    # as large as those of two heads.
    return width, experts * inner, heads + 2 if not manifest.limits.max_target_len and _has_windows(config) else heads


def _has_windows(config: Mapping[str, object]) -> bool:
    """Whether the configuration of a model has windows, in all layers or in some."""
    groups = config.get("layer_groups")
    others = [group for group in groups if isinstance(group, Mapping)] if isinstance(groups, list | tuple) else []
    return any(layer.get("sliding_window") for layer in (config, *others))
