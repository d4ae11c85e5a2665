"""From a checkpoint to a bundle: check, trace, optimise, save, verify, rename into place.

torch's exporter turns each graph's module (`export.graphs.encoder_decoder`) into ONNX; the passes of
`export.passes.optimize` follow; what
comes out is compared with PyTorch by `export.verification.verifier` before the bundle gets its name. What the graphs
compute is
decided in `model` and `export.graphs.encoder_decoder`, not here.

    ExportError          the model cannot be exported, or the trace is not what it must be
    └── ParityError      the graphs do not compute what the model does; `report` holds every check
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import datetime
import importlib.metadata
import logging
import math
import shutil
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import torch
from onnx import ModelProto, TensorProto

from export.bundle import (
    PAD_MULTIPLE,
    SHORTLIST,
    SOURCE_LANGUAGE,
    TARGET_LANGUAGE,
    TOKENIZER,
    AlignmentSpec,
    Encoding,
    GraphSpec,
    Manifest,
    Quantization,
    Role,
    SpecialTokenTemplate,
    Task,
    Tokens,
    Variant,
    write_bundle,
)
from export.graphs import encoder_decoder, recurrent
from export.graphs.attention import attend_signature, seen_attention
from export.passes.calibrate import MAX_SENTENCES as MAX_CALIBRATION
from export.passes.calibrate import Ranges, calibrate
from export.passes.fuse_rotary import ROTARY_MULTIPLE, fuse_rotary
from export.passes.optimize import makers_of, name_weights, optimize, round_up_tables
from export.passes.quantize import SCHEMES, Precision, QuantizationScheme, quantize
from export.passes.shortlist import select_rows, shortlist_graphs, shortlist_states
from export.select_scheme import MAX_SENTENCES, Development, SchemeSelectionError, select_scheme
from export.shortlist import learn_shortlist
from export.verification.inputs import framed_texts, sample_inputs
from export.verification.ort_graphs import OrtGraphs, is_batch_invariant
from export.verification.verifier import (
    checkpoint_digest,
    limits_of,
    make_report,
    verify_variants,
)
from model.architecture_config import RecurrentConfig
from model.architectures import Model
from model.checkpoint import load_checkpoint
from model.config import DEFAULT_LANGUAGES, ModelConfig
from model.config import SOURCE_LANGUAGE as SOURCE_ID
from model.config import TARGET_LANGUAGE as TARGET_ID
from model.encoder import Encoder
from model.recurrent import Recurrent, state_names
from model.tokenizer import Tokenizer
from model.training.data import unseen_examples
from model.training.evaluate import greedy_batch

OPSET = 23
# Candidates when no scheme is named. Blocks of 8 bits are for one to four rows, and with larger blocks of 4 bits
# answers depend on the batch.
AUTOMATIC: Mapping[Precision, tuple[str, ...]] = {
    "int8": ("w8a8-dynamic", "w8a8-static", "w8a8-dynamic-kv8", "w8a8-static-kv8"),
    "int4": ("w4-block32",),
}
INLINE_LIMIT = 1 << 20  # bytes of weights; a file of their own is mapped, not copied, and a message ends at 2 GiB


class ExportError(Exception):
    """A model cannot be exported."""


class ParityError(ExportError):
    """The graphs do not compute what the model does."""

    def __init__(self, report: Mapping[str, Any]) -> None:
        failed = [check for check in report["checks"] if not check["passed"]]
        lines = [f"{c['name']}: error {c['max_error']:g} over {c['tolerance']:g} ({c['note']})" for c in failed]
        super().__init__("verification refused the graphs; nothing was written; " + "; ".join(lines))
        self.report = report


@dataclass(frozen=True, kw_only=True)
class QuantizationOptions:
    """How the schemes of int8 and int4 are chosen.

    scheme: one of `export.passes.quantize.SCHEMES`, or "auto" for the fastest of `AUTOMATIC`. development: text to
    measure on;
    None: there is none. calibration: pairs of source and target text, the source empty for models without one; none:
    the development text. max_loss: see `export.select_scheme.choose`.
    """

    scheme: str = "auto"
    development: Development | None = None
    calibration: Sequence[tuple[str, str]] = ()
    max_loss: float | None = None


def export_bundle(
    checkpoint: Path,
    out: Path,
    *,
    precisions: Sequence[Precision] = ("fp32",),
    quantization: QuantizationOptions | None = None,
    texts: Sequence[str] = (),
    attention: bool = False,
    parallel: Sequence[tuple[str, str]] = (),
    replace: bool = False,
) -> Manifest:
    """Export a checkpoint directory. `texts`: sentences such as the model was trained on, for verification.

    quantization: how the scheme of int8 and int4 is chosen; a model of an embedded corpus brings text for that, others
    must be given some. attention: also a graph that tells every attention of a pass, and where there is a source
    one that tells how a finished target attends to it. parallel: pairs of source and target text from which to learn a
    shortlist; none: no shortlist.

    Raises CheckpointError, ExportError and BundleError; then nothing is at `out` that was not there before.
    """
    loaded = load_checkpoint(checkpoint)
    lineage = {**loaded.lineage, "checkpoint_sha256": checkpoint_digest(checkpoint), "metrics": loaded.metrics}
    quantization = quantization or QuantizationOptions()
    if quantization.development is None and any(precision in AUTOMATIC for precision in precisions):
        quantization = dataclasses.replace(quantization, development=own_development(loaded.lineage))
    return export_model(
        loaded.model,
        loaded.tokenizer,
        out,
        lineage=lineage,
        precisions=precisions,
        quantization=quantization,
        texts=texts,
        attention=attention,
        parallel=parallel,
        replace=replace,
    )


def own_development(lineage: Mapping[str, Any]) -> Development | None:
    """Text to measure on that a checkpoint's lineage leads to: only that of embedded corpora is at hand."""
    examples = unseen_examples(str(lineage.get("data")), MAX_SENTENCES)
    if examples is None:
        return None
    sources, targets = [source for source, _ in examples.pairs], [target for _, target in examples.pairs]
    return Development(sources, targets, examples.name) if any(sources) else Development(targets, (), examples.name)


def export_model(
    model: Model,
    tokenizer: Tokenizer,
    out: Path,
    *,
    lineage: Mapping[str, Any] | None = None,
    precisions: Sequence[Precision] = ("fp32",),
    quantization: QuantizationOptions | None = None,
    texts: Sequence[str] = (),
    attention: bool = False,
    parallel: Sequence[tuple[str, str]] = (),
    replace: bool = False,
    inline_limit: int = INLINE_LIMIT,
) -> Manifest:
    """Export a model in memory: float32, on the CPU, in evaluation mode; it is not changed.

    Each of the precisions becomes a variant and is verified on the CPU against the float32 model; CUDA needs fp16.
    int8 and int4 take the fastest scheme that `quantization` allows, measured against fp32.
    Graphs with more than `inline_limit` bytes of weights keep them in a file beside them.
    """
    config, quantization = model.config, quantization or QuantizationOptions()
    check_exportable(model, tokenizer)
    check_quantization(precisions, quantization)
    check_options(config, precisions, quantization, attention=attention, has_shortlist=bool(parallel))
    if quantization.development is None and texts:
        quantization = dataclasses.replace(quantization, development=Development(texts, (), "the texts given"))

    def build(directory: Path) -> Manifest:
        tokenizer.save(directory / TOKENIZER)
        origin = {**(lineage or {}), "model": config.to_json(), "export": versions()}
        if parallel:
            origin["shortlist"] = save_shortlist(parallel, tokenizer, config, directory)
        variants = save_variants(
            model,
            tokenizer,
            directory,
            precisions,
            quantization,
            inline_limit=inline_limit,
            attention=attention,
            shortlist=bool(parallel),
        )
        samples = sample_inputs(config, tokenizer, texts)
        checks, golden = verify_variants(directory, variants, model, samples)
        report = make_report(checks)
        if not report["passed"] or golden is None:
            raise ParityError(report)
        return Manifest(
            architecture=config.architecture,
            task=task_of(config),
            tokens=tokens_of(config),
            template=special_token_template(config),
            limits=limits_of(config),
            variants=variants,
            golden=golden,
            lineage=origin,
            parity=report,
            alignment=alignment_of(config) if attention and config.has_encoder and config.has_decoder else None,
            encoding=encoding_of(config) if config.has_encoder else None,
            attention_maps=seen_attention(config) if attention else (),
            created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            shortlist=SHORTLIST if parallel else "",
        )

    return write_bundle(out, build, replace=replace)


def check_options(
    config: ModelConfig,
    precisions: Sequence[Precision],
    quantization: QuantizationOptions,
    *,
    attention: bool,
    has_shortlist: bool,
) -> None:
    """Refuses what a model of this kind cannot have. Raises ExportError."""
    if not config.has_decoder and (
        "int4" in precisions or (quantization.scheme != "auto" and not is_for_encoders(quantization.scheme))
    ):
        raise ExportError(
            "precision int4, and schemes with blocks or int8 caches, are of decoders; export an encoder with fp32, "
            "fp16, or int8 in scheme w8a8-dynamic or w8a8-static"
        )
    if (
        quantization.scheme in SCHEMES
        and SCHEMES[quantization.scheme].has_int8_cache
        and (problem := int8_cache_problem(config))
    ):
        raise ExportError(
            f"scheme: {quantization.scheme} keeps int8 keys and values, {problem}; take {quantization.scheme[:-4]}"
        )
    if attention and config.compression_stride:
        raise ExportError(
            "attention: not of a model with compression, whose layers see keys of several tokens; export it without"
        )
    if has_shortlist and not (config.has_encoder and config.has_decoder):
        raise ExportError("shortlist: only models that translate have it; export this one without shortlist")
    if attention and config.is_recurrent and config.score == "none":
        raise ExportError("attention: a recurrent model without a score has none; export it without attention")


def task_of(config: ModelConfig) -> Task:
    """What a model is for."""
    if not config.has_decoder:
        return "encoding"
    return "translation" if config.has_encoder else "generation"


def encoding_of(config: ModelConfig) -> Encoding:
    """What is told of a source beside its states; of a model that translates, nothing."""
    return Encoding(
        width=config.source_dim if config.is_recurrent else config.d_model,
        has_pooler=config.pooler != "none",
        mask=config.mask_id if config.head == "masked" else None,
        labels=config.labels,
        multi_label=config.multi_label,
        has_token_weights=config.head == "attention",
    )


def tokens_of(config: ModelConfig) -> Tokens:
    """The special ids of a model."""
    return Tokens(
        pad=config.pad_id, bos=config.bos_id, eos=config.eos_id, unk=config.unk_id, extra_eos=config.extra_eos_ids
    )


def special_token_template(config: ModelConfig) -> SpecialTokenTemplate:
    """What stands around the model's texts, as a manifest tells it."""
    template = config.template
    told = {SOURCE_ID: SOURCE_LANGUAGE, TARGET_ID: TARGET_LANGUAGE}
    parts = {
        name: tuple(told.get(token, token) for token in getattr(template, name))
        for name in ("source_prefix", "source_suffix", "target_prefix")
    }
    return SpecialTokenTemplate(**parts, languages=dict(template.languages))


def check_exportable(model: Model, tokenizer: Tokenizer) -> None:
    """Refuses what the operators or the service could not run. Raises ExportError."""
    config = model.config
    if config.is_recurrent:
        if config.score != "none" and config.source_dim % encoder_decoder.HEAD_DIM_MULTIPLE:
            raise ExportError(
                f"encoder_dim: must be a multiple of {encoder_decoder.HEAD_DIM_MULTIPLE} for ONNX Runtime's "
                f"GroupQueryAttention, got {config.source_dim}; train with another encoder_dim or d_model"
            )
    elif config.has_decoder and config.attention_head_dim % encoder_decoder.HEAD_DIM_MULTIPLE:
        raise ExportError(
            f"head_dim: must be a multiple of {encoder_decoder.HEAD_DIM_MULTIPLE} for ONNX Runtime's "
            f"GroupQueryAttention, got {config.attention_head_dim}; train with another d_model, num_heads or head_dim"
        )
    if tokenizer.vocab_size > config.vocab_size:
        raise ExportError(f"vocab_size: the model has {config.vocab_size}, its tokenizer {tokenizer.vocab_size}")
    if model.training:
        raise ExportError("the model is in training mode; call model.eval() first")


def check_quantization(precisions: Sequence[Precision], quantization: QuantizationOptions) -> None:
    """Refuses precisions and a scheme that do not fit together. Raises ExportError."""
    if not precisions or len(set(precisions)) != len(precisions):
        raise ExportError(f"precision: must be one or several different ones, got {', '.join(precisions) or 'none'}")
    if quantization.scheme == "auto":
        return
    scheme = SCHEMES.get(quantization.scheme)
    if scheme is None or not scheme.is_quantized:
        known = [name for name, scheme in SCHEMES.items() if scheme.is_quantized]
        raise ExportError(f"scheme: must be auto, {' or '.join(known)}, got {quantization.scheme}")
    if scheme.precision not in precisions:
        raise ExportError(
            f"scheme: {scheme.name} is one of {scheme.precision}, which is not among the precisions "
            f"{', '.join(precisions)}; "
            f"fix: ask for {scheme.precision} as well"
        )


def is_for_encoders(scheme: str) -> bool:
    """Whether a scheme is more than another name for "w8a8-dynamic" or "w8a8-static" where there is no decoder."""
    return SCHEMES[scheme].activations in ("dynamic", "static") and not SCHEMES[scheme].has_int8_cache


def save_variants(
    model: Model,
    tokenizer: Tokenizer,
    directory: Path,
    precisions: Sequence[Precision],
    quantization: QuantizationOptions,
    *,
    inline_limit: int = INLINE_LIMIT,
    attention: bool = False,
    shortlist: bool = False,
) -> tuple[Variant, ...]:
    """A variant of each precision below `directory`, those of int8 and int4 in the schemes that were chosen."""
    quantized = [precision for precision in precisions if precision in AUTOMATIC]
    traced = trace_model(model, attention=attention, shortlist=shortlist) if quantized else None
    scratch, variants = directory / "candidates", dict[Precision, Variant]()

    def save(scheme: QuantizationScheme | Precision, place: Path, ranges: Ranges | None = None) -> Variant:
        extras = {"attention": attention, "shortlist": shortlist}
        return save_variant(model, place, scheme, inline_limit, **extras, ranges=ranges, traced=traced)

    for precision in precisions:
        if precision not in AUTOMATIC:
            variants[precision] = save(precision, directory)
    if quantized:
        development = quantization.development
        if development is None:
            raise ExportError(
                f"{' and '.join(quantized)}: there is no text to measure on what rounding costs; "
                "fix: give development text, --development FILE"
            )
        asked = {precision: _scheme_names(precision, quantization.scheme, model.config) for precision in quantized}
        is_calibrated = any(SCHEMES[name].needs_ranges for names in asked.values() for name in names)
        ranges = calibrate(model, calibration_ids(model, tokenizer, quantization)) if is_calibrated else None
        place = directory if "fp32" in variants else scratch / "fp32"
        plain = variants["fp32"] if "fp32" in variants else save("fp32", place)
        baseline = OrtGraphs(place, plain, limits_of(model.config))
        for precision, names in asked.items():
            saved = {name: save(SCHEMES[name], scratch / name, ranges) for name in names}
            served = {name: OrtGraphs(scratch / name, saved[name], limits_of(model.config)) for name in names}
            try:
                choice = select_scheme(
                    baseline, served, development, tokenizer, model.config, max_loss=quantization.max_loss
                )
            except SchemeSelectionError as error:
                raise ExportError(f"{precision}: {error}") from None
            (scratch / choice.scheme / precision).rename(directory / precision)
            variants[precision] = dataclasses.replace(saved[choice.scheme], comparison=choice.figures)
        shutil.rmtree(scratch, ignore_errors=True)
    return tuple(variants[precision] for precision in precisions)


def _scheme_names(precision: Precision, scheme: str, config: ModelConfig) -> tuple[str, ...]:
    """The schemes of a precision that are measured: the one named, if it is one of this precision."""
    if scheme in SCHEMES and SCHEMES[scheme].precision == precision:
        return (scheme,)
    has_problem = bool(int8_cache_problem(config))
    return tuple(name for name in AUTOMATIC[precision] if not (has_problem and SCHEMES[name].has_int8_cache))


def int8_cache_problem(config: ModelConfig) -> str:
    """Why the keys and values of a model cannot be kept in int8; "" if they can. What calibration sees of them is what
    leaves their product, and some are changed afterwards."""
    if config.is_recurrent or not config.has_decoder:
        kind = "a recurrent model" if config.is_recurrent else "an encoder alone"
        return f"and {kind} has none"
    if config.compression_stride:
        return "and those of a model with compression are made of several tokens"
    if config.qk_norm:
        return "and those of a model with qk_norm have another range behind the norm"
    if config.positions == "rotary" and config.rotary_dims:
        return "and of those of a model with rotary_dims only a part turns"
    return ""


def calibration_ids(
    model: Model, tokenizer: Tokenizer, quantization: QuantizationOptions
) -> list[tuple[list[int], list[int]]]:
    """Token ids of the calibration text, or of the development text; sources without a reference are answered."""
    config, pairs, development = (
        model.config,
        list(quantization.calibration[:MAX_CALIBRATION]),
        quantization.development,
    )
    if isinstance(model, Encoder):
        given = [source or target for source, target in pairs] or list(development.texts if development else ())
        return [(list(source), []) for source in framed_texts(given[:MAX_CALIBRATION], tokenizer, config)]
    if not pairs and development is not None:
        texts = development.texts[:MAX_CALIBRATION]
        references = development.references or ("",) * len(texts)
        pairs = list(zip(texts, references, strict=False)) if config.has_encoder else [("", text) for text in texts]
    sources = tokenizer.encode_batch([source for source, _ in pairs])
    targets = tokenizer.target.encode_batch([target for _, target in pairs])
    template, languages = config.template, development.languages if development is not None else DEFAULT_LANGUAGES
    start = template.wrap_prompt((), languages)
    most = config.max_target_len - len(start)
    if not config.has_encoder:
        pieces = [ids[place : place + most] for ids in targets for place in range(0, len(ids), max(most, 1))]
        return [([], [*start, *piece]) for piece in pieces[:MAX_CALIBRATION] if start or piece]
    longest = config.max_source_len - template.num_source_special
    framed = [template.wrap_source(source[:longest], languages) for source in sources]
    if not any(targets):
        enough = min(most + 1, 2 * max(map(len, framed)) + 16)
        answers = greedy_batch(model, [start] * len(framed), sources=framed, max_tokens=enough)
        targets = [[token for token in answer if token not in config.eos_ids] for answer in answers]
    return [(source, [*start, *target[:most]]) for source, target in zip(framed, targets, strict=True)]


class Traced(NamedTuple):
    """The graphs of a model by role, optimised, and how each is called. Nobody changes them: `save_variant` copies."""

    graphs: Mapping[Role, ModelProto]
    signatures: Mapping[Role, encoder_decoder.Signature]


def trace_model(model: Model, *, attention: bool = False, shortlist: bool = False) -> Traced:
    """Every graph that a model needs, in the precision it is in. Raises ExportError for what a trace got wrong."""
    named = {**dict(model.named_buffers()), **model.state_dict()}
    weights = {name: tensor.detach().numpy() for name, tensor in named.items()}
    made = dict[Role, ModelProto]()
    if isinstance(model, Recurrent):
        signatures = recurrent.signatures(model, attention=attention)
    else:
        signatures = encoder_decoder.signatures(model, attention=attention)
        if attention and seen_attention(model.config):
            signatures["attend"] = attend_signature(model)
    for role, signature in signatures.items():
        named_graph = name_weights(optimize(trace(signature)), weights)
        made[role] = fuse_rotary(round_up_tables(named_graph, PAD_MULTIPLE))
        if isinstance(model, Encoder) and role == "encode":
            check_encoder_graph(made[role], model)
        else:
            check_graph(made[role], role, model.config, is_half=not encoder_decoder.attends_in_one_node(model))
    if shortlist:
        select_rows(made["decode"], last_product(model)[0])
    return Traced(made, signatures)


def last_product(model: Model) -> tuple[np.ndarray, np.ndarray | None]:
    """The weight (V, M) and the bias (V,), if there is one, of what turns a decoder's states into logits."""
    assert not isinstance(model, Encoder)
    product = model.decoder.unembedding
    return product.weight.detach().numpy(), None if product.bias is None else product.bias.detach().numpy()


def save_variant(
    model: Model,
    directory: Path,
    scheme: QuantizationScheme | Precision,
    inline_limit: int = INLINE_LIMIT,
    *,
    attention: bool = False,
    shortlist: bool = False,
    ranges: Ranges | None = None,
    traced: Traced | None = None,
) -> Variant:
    """Trace, optimise, quantise and save every graph of a float32 model below `directory`/PRECISION.

    scheme: by itself, or the precision of one that needs no choice (fp32, fp16). ranges: for schemes that need them.
    traced: what `trace_model` made of this model before, with the same extras; fp16 has to be traced anew.
    """
    scheme = SCHEMES[scheme] if isinstance(scheme, str) else scheme
    if scheme.precision == "fp16":
        model, traced = copy.deepcopy(model).half(), None
    traced = traced or trace_model(model, attention=attention, shortlist=shortlist)
    made = dict[Role, ModelProto]()
    (directory / scheme.precision).mkdir(parents=True)
    for role, signature in traced.signatures.items():
        graph = ModelProto()
        graph.CopyFrom(traced.graphs[role])
        graph = quantize(graph, role, scheme, ranges)
        made[role] = signature.finish(graph) if signature.finish else graph
    states_of = recurrent.states if model.config.is_recurrent else encoder_decoder.states
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    states = states_of(model.config, "int8" if scheme.has_int8_cache else dtype)
    if shortlist:
        made |= shortlist_graphs(*last_product(model), is_quantized=scheme.is_quantized)
        states += shortlist_states(*last_product(model), is_quantized=scheme.is_quantized)
    specs = dict[str, GraphSpec]()
    for role, graph in made.items():
        inputs = tuple(value.name for value in graph.graph.input)
        file = f"{scheme.precision}/{role}.onnx"
        save_graph(graph, directory / file, inline_limit)
        outputs = tuple(value.name for value in graph.graph.output)
        specs[role] = GraphSpec(role=role, file=file, inputs=inputs, outputs=outputs)
    return Variant(
        precision=scheme.precision,
        graphs=specs,
        states=states,
        quantization=_quantization(scheme),
    )


def _quantization(scheme: QuantizationScheme) -> Quantization | None:
    """What is promised of a scheme, as far as this processor keeps it."""
    promised = scheme.quantization()
    if promised is None or is_batch_invariant(scheme):
        return promised
    return dataclasses.replace(promised, batch_invariant=False)


def save_shortlist(
    parallel: Sequence[tuple[str, str]], tokenizer: Tokenizer, config: ModelConfig, directory: Path
) -> dict[str, Any]:
    """Learns and writes the shortlist; returns what is worth remembering of it. Raises ExportError."""
    try:
        learned = learn_shortlist(parallel, tokenizer, eos_id=config.eos_id)
    except ValueError as error:
        raise ExportError(f"shortlist: {error}") from None
    (directory / SHORTLIST).write_text(learned.shortlist.to_json(), encoding="utf-8")
    figures = {"coverage": learned.coverage, "mean_allowed": learned.mean_allowed}
    rounded = {name: round(value, 4) for name, value in figures.items() if math.isfinite(value)}
    return {"pairs": learned.pairs, "held_out": learned.held_out, **rounded}


def alignment_of(config: ModelConfig) -> AlignmentSpec:
    """What `align` tells of a model, and the layer that aligns words best: the last but one (Garg et al. 2019, "Jointly
    Learning to Align and Translate with Transformer Models"), where there are enough layers to speak of one."""
    if config.is_recurrent:
        return AlignmentSpec(layers=1, heads=1, default_layer=1)
    layers = config.num_decoder_layers
    return AlignmentSpec(layers=layers, heads=config.num_heads, default_layer=layers - 1 if layers >= 3 else layers)


def trace(signature: encoder_decoder.Signature) -> ModelProto:
    """The graph of a module as torch's exporter makes it."""
    with _quiet_exporter(), torch.no_grad():
        program = torch.onnx.export(
            signature.module.eval(),
            signature.arguments,
            dynamo=True,
            opset_version=OPSET,
            dynamic_shapes=signature.dynamic_axes,
            input_names=signature.inputs,
            output_names=signature.outputs,
            verbose=False,
        )
    assert program is not None  # it is None only for the exporter that preceded this one
    proto: ModelProto = program.model_proto
    return proto


def check_encoder_graph(graph: ModelProto, model: Encoder) -> None:
    """What a trace or a pass could get wrong in silence, of an encoder alone. Raises ExportError."""
    config, is_one_node = model.config, encoder_decoder.attends_in_one_node(model)
    can_pack = is_one_node and not config.qk_norm and config.positions not in ("rotary", "shaw")
    layers, weights = config.num_encoder_layers, int(model.attention is not None)
    routers = layers if config.num_experts else 0
    counts = {
        "GroupQueryAttention": layers if is_one_node else 0,
        "Softmax": weights + (0 if is_one_node else layers) + routers,
        "NonZero": routers * config.num_experts,
        "LogSoftmax": int(model.masked is not None),
    }
    _check_counts(graph, "encode", counts, packed=layers if can_pack else 0)


def _check_counts(graph: ModelProto, role: Role, nodes: Mapping[str, int], *, packed: int) -> None:
    """Raises ExportError unless there are so many nodes of these kinds, of the attention nodes so many with packed
    query, key and value, and no functions."""
    operators = Counter(node.op_type for node in graph.graph.node)
    found = sum(node.op_type == "GroupQueryAttention" and not node.input[1] for node in graph.graph.node)
    counts = {f"{name} nodes": (operators[name], expected) for name, expected in nodes.items()}
    counts["attention nodes with packed query, key and value"] = found, packed
    counts["functions"] = len(graph.functions), 0
    for what, (actual, expected) in counts.items():
        if actual != expected:
            raise ExportError(f"{role}: the graph must have {expected} {what}, got {actual}; versions: {versions()}")


def check_graph(graph: ModelProto, role: Role, config: ModelConfig, *, is_half: bool = False) -> None:
    """What a trace or a pass could get wrong in silence; is_half: of a model in half precision. Raises ExportError."""
    if role == "logprobs":
        _check_counts(graph, role, {"LogSoftmax": 1, "TopK": 1}, packed=0)
        return
    if config.is_recurrent:
        _check_recurrent_graph(graph, role, config)
        return
    # What happens to queries or keys outside the operator keeps them apart.
    is_rotary, is_apart = config.positions == "rotary", config.positions == "shaw" or config.qk_norm
    nodes, packable, softmaxes, compressed, blocks = 0, 0, 0, 0, config.num_decoder_layers
    if role == "decode":
        turning = config.rotary_dims or config.attention_head_dim
        is_apart |= is_rotary and (turning % ROTARY_MULTIPLE > 0 or config.attention_head_dim % ROTARY_MULTIPLE > 0)
        nodes = config.num_decoder_layers * (2 if config.has_encoder else 1)
        compressed = sum(map(config.is_compressed, range(config.num_decoder_layers)))
        packable = 0 if is_apart else config.num_decoder_layers - compressed
    elif role == "align":
        softmaxes = 2 * config.num_decoder_layers
        blocks -= 1  # nothing behind the last layer's attention is computed
    elif role == "attend":
        softmaxes = sum(seen.layers for seen in seen_attention(config))
        own, theirs = int(config.has_decoder) * blocks, int(config.has_encoder) * config.num_encoder_layers
        blocks = own + theirs - 1
    elif is_half:
        softmaxes = blocks = config.num_encoder_layers
    else:
        nodes = blocks = config.num_encoder_layers
        packable = 0 if is_apart or is_rotary else config.num_encoder_layers
    routers = blocks if config.num_experts else 0
    counts = {
        "GroupQueryAttention": nodes,
        "Conv": 2 * compressed,
        "Softmax": softmaxes + routers,
        "TopK": routers,
        "NonZero": routers * config.num_experts,
    }
    _check_counts(graph, role, counts, packed=packable)
    if role == "decode":
        _check_logits(graph)


def _check_recurrent_graph(graph: ModelProto, role: Role, config: ModelConfig) -> None:
    assert isinstance(config, RecurrentConfig)
    is_decode, names = role == "decode", state_names(config)
    counts = {
        config.cell.upper(): config.num_encoder_layers if role == "encode" else 0,
        "GroupQueryAttention": int(is_decode and config.score != "none"),
        "Softmax": int(role == "align"),
    }
    _check_counts(graph, role, counts, packed=0)
    if is_decode:
        for name in names:
            if not _is_read_first(graph, name):
                raise ExportError(f"{role}: must read past.{name} once, and before it writes present.{name}")
        _check_logits(graph)


def _is_read_first(graph: ModelProto, name: str) -> bool:
    """Whether present.NAME may be written where past.NAME lies: one node reads that, and what is written needs it."""
    readers = [node for node in graph.graph.node if f"past.{name}" in node.input]
    if len(readers) != 1:
        return False
    makers, todo, seen = makers_of(graph.graph), [f"present.{name}"], set[str]()
    while todo:
        value = todo.pop()
        if value in readers[0].output:
            return True
        if value in makers and value not in seen:
            todo.extend(makers[value].input)
        seen.add(value)
    return False


def _check_logits(graph: ModelProto) -> None:
    """Raises ExportError unless the head's products are made float32, if they are not: of the type of its weights."""
    makers = makers_of(graph.graph)
    types = {tensor.name: tensor.data_type for tensor in graph.graph.initializer}
    head = makers["logits"]
    found = head.attribute[0].i if head.op_type == "Cast" else types[head.input[1]]
    if found != TensorProto.FLOAT:
        raise ExportError("decode: logits must be float32, whatever the precision of the graph")


def save_graph(graph: ModelProto, file: Path, inline_limit: int) -> None:
    """Write a graph, with its weights inside or, above the limit in bytes, in FILE.data beside it."""
    size = sum(len(tensor.raw_data) for tensor in graph.graph.initializer)
    is_external = size > inline_limit
    onnx.save_model(
        graph,
        file,
        save_as_external_data=is_external,
        all_tensors_to_one_file=True,
        location=f"{file.name}.data",
        size_threshold=1024,
    )


def versions() -> dict[str, str]:
    """Of whatever shaped the graphs."""
    result = {"opset": str(OPSET)}
    for name in ("glossa", "torch", "onnx", "onnxscript", "onnxruntime"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # glossa runs from a source tree too
            result[name] = importlib.metadata.version(name)
    return result


@contextlib.contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Without what the exporter says of itself: nothing of it concerns the model."""
    registry = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = registry.level
    registry.setLevel(logging.ERROR)  # "torchvision is not installed", once per export
    try:
        with warnings.catch_warnings():
            # One axis of several inputs has one name in the graph, which is what is wanted.
            warnings.filterwarnings("ignore", message="# The axis name: .* will not be used", category=UserWarning)
            # The exporter copies a structure of its own whose copying torch has deprecated.
            warnings.filterwarnings("ignore", message=r".*LeafSpec.* is deprecated", category=FutureWarning)
            yield
    finally:
        registry.setLevel(level)
