"""The variants of a bundle: a model's graphs traced, optimized, quantized and saved, one variant for each precision.

`model` and `export.graphs` define what the graphs compute; `export.verification` verifies it.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from onnx import ModelProto
from onnx.external_data_helper import set_external_data

from export.bundle.manifest import PAD_MULTIPLE, GraphSpec, Role, Variant, largest_capacity
from export.export_errors import ExportError, describe_failure
from export.graph_checks import check_graph
from export.graphs import encoder_decoder, recurrent
from export.graphs.group_query_attention import encoder_operators
from export.graphs.tracing import Signature, trace
from export.limits import limits_of
from export.options import ExportOptions, Tell, scheme_names
from export.passes.calibrate import MAX_SENTENCES as MAX_CALIBRATION
from export.passes.calibrate import Ranges, calibrate, input_moments, named_tensors
from export.passes.equalize import Exponents, can_equalize, equalized, find_exponents
from export.passes.error_feedback import Feedback
from export.passes.fuse_norms import fuse_norms
from export.passes.fuse_rotary import fuse_rotary
from export.passes.held_weights import Weights, hold, values_of
from export.passes.optimize import is_held, name_weights, optimize, round_up_tables, weight_names
from export.passes.quantization_scheme import SCHEMES, QuantizationScheme
from export.passes.quantize import quantize
from export.passes.rounding_notes import RoundingNotes, write_notes
from export.passes.shortlist import select_rows, shortlist_graphs, shortlist_states
from export.passes.swap_weights import swap_weights
from export.passes.vector_products import widen_vectors
from export.select_scheme import SchemeSelectionError, select_scheme
from export.texts import Development
from export.verification.case import Case
from export.verification.checks import STATES, run_checks
from export.verification.inputs import Samples, framed_texts
from export.verification.ort_graphs import OrtGraphs, is_batch_invariant
from export.verification.torch_reference import Expectations
from model.architectures import GenerativeModel, Model
from model.config import LanguagePair
from model.encoder import Encoder
from model.recurrent import Recurrent
from model.tokenizer import Tokenizer
from model.training.evaluate import greedy_batch

SampleIds = tuple[list[int], list[int]]  # of source and target
EXTERNAL_BYTES = 1024  # of a tensor; smaller ones stay in the graph, where shapes are computed from them
INLINE_LIMIT = 1 << 20  # bytes of weights; a separate file is mapped, not copied, and a message ends at 2 GiB


class Saved(NamedTuple):
    """Variants; by precision why it is not among them, the standard errors of the losses measured, and why schemes were
    passed over."""

    variants: tuple[Variant, ...]
    left_out: dict[str, str]
    loss_errors: dict[str, Mapping[str, float]]
    passed_over: dict[str, Mapping[str, str]]


def save_variants(
    plain: Expectations, samples: Samples, tokenizer: Tokenizer, directory: Path, options: ExportOptions
) -> Saved:
    """Save a variant of each precision of the model of `plain` below `directory`, quantized ones in the selected
    schemes, of which `samples` tell what verification refuses. Raises ExportError for a precision that cannot be saved
    and is not optional."""
    model, problem_of = plain.own.model, functools.partial(_problem_of_states, plain=plain, samples=samples)
    traced_of = functools.partial(
        trace_model, attention=options.attention, shortlist=options.has_shortlist, tell=options.tell
    )
    variants, quantized, half = dict[str, Variant](), Saved((), {}, {}, {}), None
    if {"fp16", "w4a16"}.intersection(options.precisions):
        half = traced_of(copy.deepcopy(model).half())
        if "fp16" in options.precisions:
            variants["fp16"] = save_variant(half, directory, SCHEMES["fp16"])
    if set(options.precisions) != {"fp16"}:
        traced = traced_of(model)
        if "fp32" in options.precisions:
            variants["fp32"] = save_variant(traced, directory, SCHEMES["fp32"])
        if options.quantized:
            quantized = save_quantized(traced, half, tokenizer, directory, options, variants.get("fp32"), problem_of)
            variants |= {variant.precision: variant for variant in quantized.variants}
    made = tuple(variants[precision] for precision in options.precisions if precision in variants)
    return quantized._replace(variants=made)


def save_quantized(
    traced: Traced,
    half: Traced | None,
    tokenizer: Tokenizer,
    directory: Path,
    options: ExportOptions,
    fp32: Variant | None,
    problem_of: Callable[[OrtGraphs], str],
) -> Saved:
    """Save the quantized variants below `directory` in the schemes that `select_scheme` selects.

    half: of the float16 model, for the schemes that need it. fp32: that variant, if it is already there. problem_of: as
    in `select_scheme`. Raises ExportError if a precision that is not optional has no scheme.
    """
    model, quantization, scratch = traced.model, options.quantization, directory / "candidates"
    limits, variants, left_out = limits_of(model.config), list[Variant](), dict[str, str]()
    errors, passed_over = dict[str, Mapping[str, float]](), dict[str, Mapping[str, str]]()
    assert quantization.development is not None, "checked by `check_options`"
    candidates = {name: scheme_names(name, quantization.scheme, model.config) for name in options.quantized}
    schemes, rounding = [SCHEMES[name] for names in candidates.values() for name in names], None
    if any(scheme.has_integer_products for scheme in schemes):
        samples = calibration_ids(model, tokenizer, quantization.calibration, quantization.development)
        needs_ranges = any(scheme.needs_ranges for scheme in schemes)
        rounding = prepare_rounding(traced, samples, options, needs_ranges=needs_ranges)
    folder = directory if fp32 else scratch / "fp32"
    baseline = OrtGraphs(folder, fp32 or save_variant(traced, folder, SCHEMES["fp32"]), limits)
    for precision, names in candidates.items():
        saved = dict[str, Variant]()
        for name in names:
            if SCHEMES[name].has_integer_products:
                assert rounding is not None
                saved[name] = save_variant(rounding.traced, scratch / name, SCHEMES[name], **rounding.given)
            else:
                assert half is not None
                saved[name] = save_variant(half, scratch / name, SCHEMES[name])
        served = {name: OrtGraphs(scratch / name, saved[name], limits) for name in names}
        try:
            choice = select_scheme(
                baseline,
                served,
                quantization.development,
                tokenizer,
                model.config,
                max_loss=quantization.max_loss,
                problem_of=problem_of,
                tell=functools.partial(options.tell, f"comparing {precision} with fp32"),
            )
        except SchemeSelectionError as error:
            if precision not in options.optional:
                raise ExportError(f"{precision}: {error}") from None
            left_out[precision] = str(error)
            continue
        (scratch / choice.scheme / precision).rename(directory / precision)
        variants.append(dataclasses.replace(saved[choice.scheme], comparison=choice.figures))
        errors[precision] = choice.errors
        passed_over |= {precision: choice.passed_over} if choice.passed_over else {}
    shutil.rmtree(scratch)
    return Saved(tuple(variants), left_out, errors, passed_over)


def _problem_of_states(graphs: OrtGraphs, plain: Expectations, samples: Samples) -> str:
    """Why verification refuses the encoder states of a scheme; "" if it does not, or there is no encoder."""
    case = Case(graphs, plain.own.model, samples, plain)
    checks = run_checks(case, only=(STATES,)) if case.config.has_encoder else ()
    return "; ".join(describe_failure(dataclasses.asdict(check)) for check in checks if not check.passed)


class Rounding(NamedTuple):
    """What integer schemes round, and the statistics of its activations. exponents: of an equalized model."""

    traced: Traced
    feedback: Feedback
    ranges: Ranges | None
    exponents: Exponents | None

    @property
    def given(self) -> dict[str, Any]:
        """The keyword arguments of `save_variant`."""
        return {"feedback": self.feedback, "ranges": self.ranges, "exponents": self.exponents}


def prepare_rounding(
    traced: Traced, samples: Sequence[SampleIds], options: ExportOptions, *, needs_ranges: bool
) -> Rounding:
    """Return an equalized model, if it can be, with its graphs and the statistics of what it reads."""
    model, exponents = traced.model, None
    if can_equalize(model):
        options.tell("equalizing channels", 0, 0)
        exponents = find_exponents(model, samples)
        model = equalized(model, exponents)
        traced = with_weights(traced, model) or trace_model(
            model, attention=options.attention, shortlist=options.has_shortlist
        )
    options.tell("reading activations", 0, 0)
    feedback = Feedback(input_moments(model, samples))
    return Rounding(traced, feedback, calibrate(model, samples) if needs_ranges else None, exponents)


def calibration_ids(
    model: Model, tokenizer: Tokenizer, calibration: Sequence[tuple[str, str]], development: Development
) -> list[SampleIds]:
    """Return token ids of the calibration text, or else of the development text; the model generates targets for
    sources without a reference. Raises ExportError if the model can read none of it."""
    config, pairs, name = model.config, list(calibration[:MAX_CALIBRATION]), "the calibration text"
    if not pairs:
        texts, name = development.texts[:MAX_CALIBRATION], development.name
        references = development.references or ("",) * len(texts)
        pairs = list(zip(texts, references, strict=False)) if config.has_encoder else [("", text) for text in texts]
    if isinstance(model, Encoder):
        given = [source or target for source, target in pairs]
        samples: list[SampleIds] = [(list(source), []) for source in framed_texts(given, tokenizer, config)]
    else:
        samples = _decoder_samples(model, tokenizer, pairs, development.languages)
    if not samples:
        raise ExportError(
            f"calibration: this model can read no text of {name}; fix: give text of the kind that it is for"
        )
    return samples


def _decoder_samples(
    model: GenerativeModel, tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]], languages: LanguagePair
) -> list[SampleIds]:
    config, template = model.config, model.config.template
    sources = tokenizer.encode_batch([source for source, _ in pairs])
    targets = tokenizer.target.encode_batch([target for _, target in pairs])
    start = template.wrap_prompt((), languages)
    most = config.max_target_len - len(start)
    if not config.has_encoder:
        pieces = [ids[first : first + most] for ids in targets for first in range(0, len(ids), max(most, 1))]
        return [([], [*start, *piece]) for piece in pieces[:MAX_CALIBRATION] if start or piece]
    longest = config.max_source_len - template.num_source_special
    framed = [template.wrap_source(source[:longest], languages) for source in sources]
    if framed and not any(targets):
        enough = min(most + 1, 2 * max(map(len, framed)) + 16)
        answers = greedy_batch(model, [start] * len(framed), sources=framed, max_tokens=enough)
        targets = [[token for token in answer if token not in config.eos_ids] for answer in answers]
    return [(source, [*start, *target[:most]]) for source, target in zip(framed, targets, strict=True)]


class Traced(NamedTuple):
    """A model's optimized graphs by role, and their signatures. They are read-only: `save_variant` copies them.

    has_shortlist: `decode` computes logits of selected rows only, and the graphs of shortlists belong to the model.
    """

    model: Model
    graphs: Mapping[Role, ModelProto]
    signatures: Mapping[Role, Signature]
    has_shortlist: bool


def trace_model(
    model: Model, *, attention: bool = False, shortlist: bool = False, tell: Tell = lambda *_: None
) -> Traced:
    """Return every graph of a model in its precision. Raises ExportError for a trace with the wrong structure."""
    names = weight_names(arrays_of(model))
    made = dict[Role, ModelProto]()
    if isinstance(model, Recurrent):
        signatures = recurrent.signatures(model, attention=attention)
    else:
        signatures = encoder_decoder.signatures(model, attention=attention)
    is_half = next(model.parameters()).dtype == torch.float16
    capacity = largest_capacity(limits_of(model.config).max_target_len)
    for done, (role, signature) in enumerate(signatures.items()):
        tell("tracing graphs", done, len(signatures))
        arrays = dict[str, np.ndarray]()
        graph = hold(trace(signature, arrays), arrays, names)
        del arrays
        named_graph = name_weights(optimize(graph), names)
        made[role] = fuse_rotary(round_up_tables(named_graph, PAD_MULTIPLE), capacity)
        if is_half:
            made[role] = widen_vectors(fuse_norms(made[role]))
        check_graph(made[role], role, model.config, encoder_operators=encoder_operators(model))
    if shortlist:
        select_rows(made["decode"], last_product(model)[0])
    return Traced(model, made, signatures, shortlist)


def with_weights(traced: Traced, model: Model) -> Traced | None:
    """Return the graphs for another model of the same shape; None if they do not hold its weights one by one."""
    before, after = arrays_of(traced.model), arrays_of(model)
    made, held = dict[Role, ModelProto](), set[str]()
    for role, graph in traced.graphs.items():
        made[role] = ModelProto()
        made[role].CopyFrom(graph)
        found = swap_weights(made[role], before, after)
        if found is None:
            return None
        held |= found
    changed = {name for name, array in after.items() if not np.array_equal(array, before[name])}
    return traced._replace(model=model, graphs=made) if changed <= held else None


def arrays_of(model: Model) -> dict[str, np.ndarray]:
    """Return the tensors of `named_tensors`, in the memory of the model."""
    return {name: tensor.detach().numpy() for name, tensor in named_tensors(model).items()}


def last_product(model: Model) -> tuple[np.ndarray, np.ndarray | None]:
    """Return weight (V, M) and bias (V,), if there is one, of the projection from decoder states to logits."""
    assert not isinstance(model, Encoder)
    product = model.decoder.unembedding
    return product.weight.detach().numpy(), None if product.bias is None else product.bias.detach().numpy()


def save_variant(
    traced: Traced,
    directory: Path,
    scheme: QuantizationScheme,
    *,
    ranges: Ranges | None = None,
    feedback: Feedback | None = None,
    exponents: Exponents | None = None,
    inline_limit: int = INLINE_LIMIT,
) -> Variant:
    """Quantize and save every graph of a model below `directory`/PRECISION.

    traced: of a float16 model if `scheme.is_half`, else of a float32 model. ranges: for schemes that need them.
    feedback: see `quantize`. exponents: of an equalized model, by which it is verified.
    """
    model, made = traced.model, dict[Role, ModelProto]()
    weights = arrays_of(model)
    (directory / scheme.precision).mkdir(parents=True)
    for role, signature in traced.signatures.items():
        graph = ModelProto()
        graph.CopyFrom(traced.graphs[role])
        graph = quantize(graph, role, scheme, ranges, feedback, weights)
        made[role] = signature.finish(graph) if signature.finish else graph
        if scheme.is_quantized:
            write_notes(made[role], RoundingNotes(exponents, feedback is not None))
    states_of = recurrent.states if model.config.is_recurrent else encoder_decoder.states
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    assert (dtype == "float16") == scheme.is_half, (dtype, scheme.name)
    states = states_of(model.config, "int8" if scheme.has_int8_cache else dtype)
    if traced.has_shortlist:
        made |= shortlist_graphs(*last_product(model), is_quantized=scheme.has_integer_products)
        states += shortlist_states(*last_product(model), is_quantized=scheme.has_integer_products)
    specs = dict[str, GraphSpec]()
    for role, graph in made.items():
        inputs = tuple(value.name for value in graph.graph.input)
        file = f"{scheme.precision}/{role}.onnx"
        save_graph(graph, directory / file, inline_limit, weights)
        outputs = tuple(value.name for value in graph.graph.output)
        specs[role] = GraphSpec(role=role, file=file, inputs=inputs, outputs=outputs)
    quantization = scheme.quantization(batch_invariant=is_batch_invariant(scheme))
    return Variant(precision=scheme.precision, graphs=specs, states=states, quantization=quantization)


def save_graph(graph: ModelProto, file: Path, inline_limit: int, weights: Weights | None = None) -> None:
    """Write a graph, with its weights inside or, above the limit in bytes or if it lacks some, in FILE.data beside it,
    to which the graph refers then. Raises OSError, which onnx's own function does not: it hides why a file could not be
    opened.

    weights: of the graph's model, if the graph lacks some.
    """
    tensors = graph.graph.initializer
    if any(map(is_held, tensors)) or sum(len(tensor.raw_data) for tensor in tensors) > inline_limit:
        name = f"{file.name}.data"
        with file.with_name(name).open("wb") as data:
            for tensor in tensors:
                held = np.ascontiguousarray(values_of(tensor, weights or {})).data if is_held(tensor) else None
                values = tensor.raw_data if held is None else held
                if (size := memoryview(values).nbytes) >= EXTERNAL_BYTES:
                    tensor.raw_data = b""  # else onnx refuses to refer to a file
                    set_external_data(tensor, name, offset=data.tell(), length=size)
                    data.write(values)
                    tensor.ClearField("raw_data")
    file.write_bytes(graph.SerializeToString())
