"""Relations between the fields of a manifest, each of which has its type and range already.

The task decides which graphs, limits and golden answer there are; graphs write and read the states; ids are below the
size of the vocabulary. This module uses the standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from export.bundle.manifest import (
    FILE_NAME,
    MANIFEST,
    MANIFEST_DIGEST,
    SOURCE_LANGUAGE,
    TARGET_LANGUAGE,
    TOKENIZER,
    Manifest,
    StateKind,
    StateSpec,
    Variant,
)
from export.bundle.manifest_fields import SchemaError, shown

MAX_ROW_ITEMS = 1 << 28  # of a state without its growing axis
# Of a kind of state: the graphs that write and read it, the prefixes of its name there, and its growing axes.
ENDS: Mapping[StateKind, tuple[str, str, str, str, tuple[int, ...]]] = {
    "self_kv": ("decode", "decode", "present.", "past.", (1,)),
    "recurrent": ("decode", "decode", "present.", "past.", (0,)),
    "cross_kv": ("encode", "decode", "", "", (0, 1)),
    "shortlist": ("project_shortlist", "shortlist_logprobs", "", "", (1,)),
}


def check_relations(manifest: Manifest) -> None:
    """Raises SchemaError for the first problem."""
    for check in (_files, _limits, _golden, _template, _context, _encoding, _attention, _calibrations, _variants):
        for problem in check(manifest):
            raise SchemaError(problem)


def _files(manifest: Manifest) -> Iterator[str]:
    for name in manifest.files:
        if not FILE_NAME.fullmatch(name) or name in (MANIFEST, MANIFEST_DIGEST):
            yield f"files.{shown(name)} is not a name for a file of a bundle: relative, and .json, .onnx or .data"
    graphs = [graph.file for variant in manifest.variants for graph in variant.graphs.values()]
    for name in graphs:
        if not name.endswith(".onnx"):
            yield f"graphs must be in files that end in .onnx, got {shown(name)}"
    for name in (TOKENIZER, *graphs, *filter(None, [manifest.shortlist])):
        if name not in manifest.files:
            yield f"files does not list {shown(name)}"


def _limits(manifest: Manifest) -> Iterator[str]:
    limits, tokens, golden = manifest.limits, manifest.tokens, manifest.golden
    has_decoder = manifest.task != "encoding"
    name = "max_target_len" if has_decoder else "max_source_len"
    if not getattr(limits, name):
        yield f"limits.{name} must be at least 1, got 0"
    if not has_decoder and limits.max_target_len:
        yield f"limits.max_target_len must be 0 for the task encoding, got {limits.max_target_len}"
    if manifest.task == "translation" and not limits.max_source_len:
        yield "limits.max_source_len must be at least 1 for the task translation, got 0"
    is_block_free = manifest.architecture == "decoder" and all(
        state.stride == 1 for variant in manifest.variants for state in variant.states
    )
    if has_decoder and not limits.max_block and not is_block_free:
        kind = f"{manifest.architecture} with states of a stride" * (manifest.architecture == "decoder")
        yield f"limits.max_block must be 1 for the architecture {kind or manifest.architecture}, got 0"
    ids = [tokens.pad, tokens.bos, tokens.unk, *tokens.ends, *golden.prompt, *golden.output]
    if max(ids) >= limits.vocab_size:
        yield f"tokens and golden must hold ids of 0..{limits.vocab_size - 1}, got {max(ids)}"
    if max(sources := [tokens.pad, *golden.source]) >= limits.source_ids:
        yield f"tokens.pad and golden.source must hold ids of 0..{limits.source_ids - 1}, got {max(sources)}"
    if limits.source_vocab_size and manifest.task != "translation":
        yield f"limits.source_vocab_size must be 0 for the task {manifest.task}, got {limits.source_vocab_size}"


def _golden(manifest: Manifest) -> Iterator[str]:
    golden, limits = manifest.golden, manifest.limits
    if manifest.task == "encoding":
        if golden.prompt or golden.output or not golden.source:
            yield "golden must have a source, and nothing else but vectors, for the task encoding"
    elif not golden.prompt or not golden.output or bool(golden.source) != bool(limits.max_source_len):
        yield "golden must have a prompt, an output, and a source exactly when the model has one"
    if len(golden.source) > limits.max_source_len:
        yield f"golden.source must have at most {limits.max_source_len} tokens, got {len(golden.source)}"
    answered = len(golden.prompt) + len(golden.output)
    if answered > limits.max_target_len + 1:  # nothing is computed after the last token
        yield f"golden must have at most {limits.max_target_len + 1} tokens of prompt and output, got {answered}"


def _template(manifest: Manifest) -> Iterator[str]:
    template, limits = manifest.template, manifest.limits
    for code, token in template.languages.items():
        if token >= limits.source_ids:
            yield f"template.languages.{code} must be an id of 0..{limits.source_ids - 1}, got {token}"
    names = (SOURCE_LANGUAGE, TARGET_LANGUAGE) if template.languages and limits.max_source_len else ()
    of_targets = () if limits.source_vocab_size else names  # languages are ids of sources
    sides = {"source": (limits.source_ids, names), "target": (limits.vocab_size, of_targets)}
    for name in ("source_prefix", "source_suffix", "target_prefix"):
        size, known = sides[name.partition("_")[0]]
        for index, token in enumerate(getattr(template, name)):
            if token not in known and not (isinstance(token, int) and token < size):
                languages = f", or {' or '.join(known)}" if known else ""
                where = f"template.{name}[{index}]"
                yield f"{where} must be an id of 0..{size - 1}{languages}, got {shown(token)}"
    if limits.max_source_len and limits.max_target_len and not template.target_prefix:
        yield "template.target_prefix must hold what the decoder begins from"
    if limits.max_source_len and len(template.source_special_tokens) > limits.max_source_len:
        yield f"template must put at most {limits.max_source_len} tokens around a source"
    if len(template.target_prefix) > limits.max_target_len:
        yield f"template.target_prefix must be at most {limits.max_target_len} tokens"


def _context(manifest: Manifest) -> Iterator[str]:
    context, limits = manifest.context, manifest.limits
    if manifest.source_unit != "text" and manifest.task != "translation":
        yield f"source_unit must be text for the task {manifest.task}, got {manifest.source_unit}"
    named = {*manifest.template.source_special_tokens, *manifest.template.target_prefix}
    for field in (SOURCE_LANGUAGE, TARGET_LANGUAGE):
        if (code := getattr(manifest, field)) and field in named:
            yield f"{field} must be empty where requests name it, got {shown(code)}"
        elif code and manifest.task != "translation":
            yield f"{field} must be empty for the task {manifest.task}, got {shown(code)}"
    if context is None:
        return
    if manifest.task != "translation":
        yield f"context must be null for the task {manifest.task}"
    if limits.source_vocab_size:
        yield "context must be null with limits.source_vocab_size: its separator is one id of sources and targets"
    if context.separator >= limits.vocab_size:
        yield f"context.separator must be an id of 0..{limits.vocab_size - 1}, got {context.separator}"


def _encoding(manifest: Manifest) -> Iterator[str]:
    encoding, words = manifest.encoding, manifest.limits.vocab_size
    is_encoder = manifest.task == "encoding"
    if encoding is None:
        if is_encoder:
            yield "encoding must describe the outputs of encode, for the task encoding"
        return
    if encoding.mask is not None and encoding.mask >= words:
        yield f"encoding.mask must be an id of 0..{words - 1}, got {encoding.mask}"
    if len(set(encoding.labels)) < len(encoding.labels) or not all(encoding.labels):
        yield f"encoding.labels must be different names, got {shown(encoding.labels)}"
    if encoding.has_token_labels and (not encoding.labels or encoding.multi_label or encoding.has_token_weights):
        yield "encoding.has_token_labels must come with labels, and without multi_label and has_token_weights"
    if encoding.default_prompt and encoding.default_prompt not in encoding.prompts:
        names = ", ".join(encoding.prompts) or "of which there are none"
        yield f"encoding.default_prompt must be one of the prompts, {names:.80}, got {shown(encoding.default_prompt)}"
    if "" in encoding.prompts:
        yield "encoding.prompts must have names"
    if encoding.dense_width and not is_encoder:
        yield f"encoding.dense_width must be 0 for the task {manifest.task}, got {encoding.dense_width}"
    for variant in manifest.variants if is_encoder else ():
        embed = variant.graphs.get("embed")
        if embed is not None and (embed.inputs, embed.outputs) != (("pooled_vector",), ("embedding",)):
            yield f"variants {variant.precision}: embed must read pooled_vector and write embedding"
        vector = manifest.golden.vectors.get(variant.precision)
        if vector is None or len(vector.values) != encoding.width:
            yield f"golden.vectors.{variant.precision} must have {encoding.width} values"


def _attention(manifest: Manifest) -> Iterator[str]:
    alignment, limits, maps = manifest.alignment, manifest.limits, manifest.attention_maps
    has_both = bool(limits.max_source_len and limits.max_target_len)
    if alignment is not None and not (has_both and alignment.default_layer <= alignment.layers):
        yield f"alignment must be of a source, and its default_layer one of its layers, got {shown(alignment)}"
    if manifest.shortlist and not has_both:
        yield "shortlist must be of a model with a source and a decoder"
    kinds = [attention.kind for attention in maps]
    if len(set(kinds)) < len(kinds):
        yield f"attention_maps must hold each kind once, got {', '.join(kinds)}"
    for attention in maps:
        sizes = attention.layers, attention.heads
        if attention.kind == "cross" and alignment is not None and sizes != (alignment.layers, alignment.heads):
            yield f"alignment must have the layers and heads of attention_maps, got {shown(alignment)}"
    for variant in manifest.variants:
        graph = variant.graphs.get("attend")
        if graph is not None and graph.outputs != tuple(f"{kind}_attention" for kind in kinds):
            yield f"variants {variant.precision}: attend must return {', '.join(kinds)}, got {shown(graph.outputs)}"


def _calibrations(manifest: Manifest) -> Iterator[str]:
    if manifest.calibrations and manifest.task != "translation":
        yield f"calibrations must be empty for the task {manifest.task}"
    precisions = [variant.precision for variant in manifest.variants]
    for precision, calibration in manifest.calibrations.items():
        if precision not in precisions:
            yield f"calibrations.{precision} must be of a variant: {', '.join(precisions)}"
        for name, found in (("words", calibration.words), ("sentences", calibration.sentences)):
            if problem := found.map.problem:
                yield f"calibrations.{precision}.{name}.map {problem}"


def _variants(manifest: Manifest) -> Iterator[str]:
    if len({variant.precision for variant in manifest.variants}) < len(manifest.variants):
        yield "variants must each have a precision of their own"
    needed = {
        "encode": bool(manifest.limits.max_source_len),
        "embed": manifest.encoding is not None and manifest.encoding.dense_width > 0,
        "decode": manifest.task != "encoding",
        "logprobs": manifest.task != "encoding",
        "align": manifest.alignment is not None,
        "attend": bool(manifest.attention_maps),
        "project_shortlist": bool(manifest.shortlist),
        "shortlist_logprobs": bool(manifest.shortlist),
    }
    roles = {role for role, is_needed in needed.items() if is_needed}
    for variant in manifest.variants:
        for problem in _variant(manifest, variant, roles):
            yield f"variants {variant.precision}: {problem}"


def _variant(manifest: Manifest, variant: Variant, roles: set[str]) -> Iterator[str]:
    if sum(figures.chosen for figures in variant.comparison) > 1:
        yield "comparison must have chosen one scheme at most"
    if set(variant.graphs) != roles or any(role != graph.role for role, graph in variant.graphs.items()):
        yield f"graphs must be exactly {' and '.join(sorted(roles))}, got {', '.join(variant.graphs)}"
    for role, graph in variant.graphs.items():
        if any(len(set(names)) < len(names) for names in (graph.inputs, graph.outputs)):
            yield f"{role} must name each input and each output once"
    decode, names = variant.graphs.get("decode"), [state.name for state in variant.states]
    if len(set(names)) < len(names):
        yield "states must each have a name of their own"
    if decode is None:
        if variant.states:
            yield f"states must be empty without decode, got {len(variant.states)}"
        return
    if manifest.shortlist and not (
        {"word_ids", "word_weight"} <= set(names) and "asked" in decode.inputs and "states" in decode.outputs
    ):
        yield (
            "with a shortlist there must be states word_ids and word_weight, and decode must read asked and write "
            f"states, got {', '.join(sorted(names))}; {', '.join((*decode.inputs, *decode.outputs))}"
        )
    windows = {state.window for state in variant.states if state.window}
    if len(windows) > 1:
        yield f"states must have one window, or none, got {', '.join(map(str, sorted(windows)))}"
    read = [name for name in ("window_lengths", "window_total") if name in decode.inputs]
    if len(read) != 2 * bool(windows):
        needed = f"{'' if windows else 'not '}read window_lengths and window_total"
        yield f"decode must {needed} as {'a' if windows else 'no'} state has a window, got {', '.join(read) or 'none'}"
    heads = {maps.kind: maps.heads for maps in manifest.attention_maps}.get("decoder")
    for state in variant.states:
        for problem in _state(state, variant, heads):
            yield f"state {state.name} {problem}"


def _state(state: StateSpec, variant: Variant, heads: int | None) -> Iterator[str]:
    """heads: of the queries that read it, where they are known."""
    writer, reader, written, read, growing = ENDS[state.kind]
    written, read = written + state.name, read + state.name
    if state.stride > 1 and state.kind != "self_kv":
        yield f"must have a stride of 1, or more of self_kv, got {state.stride}"
    if state.window and (state.kind != "self_kv" or state.stride > 1):
        yield f"must have a window of 0, or more of self_kv without a stride, got {state.window}"
    if not (writer in variant.graphs and written in variant.graphs[writer].outputs):
        yield f"has no graph that writes {written}"
    if not (reader in variant.graphs and read in variant.graphs[reader].inputs):
        yield f"has no graph that reads {read}"
    sizes = [size for size in state.shape[1:] if isinstance(size, int)]
    if not isinstance(state.shape[0], str) or len(state.shape) - 1 - len(sizes) not in growing:
        axes = " or ".join(map(str, growing))
        yield f"is {state.kind} and must have the shape of a batch with {axes} growing axes, got {state.shape}"
    if math.prod(sizes) > MAX_ROW_ITEMS:
        yield f"must have at most {MAX_ROW_ITEMS} items for each of a row's positions, got {state.shape}"
    if heads is not None and state.kind == "self_kv" and len(state.shape) == 4 and sizes[:1] and heads % sizes[0]:
        yield f"must have a number of heads that divides {heads}, got {state.shape}"
