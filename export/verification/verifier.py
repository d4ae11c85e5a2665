"""Proof that the exported graphs, run as they will be served, compute what the PyTorch model does.

Same session settings, provider and memory as the server's: past and present are one buffer. What is compared is in
`export.verification.checks`; this module runs the graphs and makes the report. Nothing is decided here about bundles:
`export.to_onnx` refuses to write one whose report has a failed check.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx
import onnxruntime

from export.bundle import (
    PAD_MULTIPLE,
    SESSION_CONFIG,
    SESSION_MEM_PATTERN,
    SESSION_OPTIMIZATION,
    SESSION_THREADS,
    Golden,
    Limits,
    Role,
    StateSpec,
    Variant,
    load_bundle,
    load_shortlist,
)
from export.passes.quantize import QuantizationScheme, quantize
from export.verification.attention_checks import AttentionVerifier
from export.verification.checks import (
    Array,
    Arrays,
    Check,
    GraphVerifier,
    Prediction,
    Verification,
    WordPrediction,
    answer_greedily,
    common_golden,
    garbage,
    last_positions,
    lengths,
    padded,
    round_up,
)
from export.verification.emulated_quantization import Roundings, SeenProduct, product_values, read_roundings
from export.verification.encoder_checks import EncoderVerifier, golden_vector, mean_state, vector_difference
from export.verification.inputs import Ids, Samples, sample_inputs
from model.architectures import Model
from model.atomic_write import DIGESTS
from model.checkpoint import load_checkpoint
from model.config import ModelConfig
from model.encoder import Encoder

PROVIDER = "CPUExecutionProvider"
CACHE_AXES = 4  # rows, heads, positions, head_dim; what a recurrent model carries has rows and a size

T = TypeVar("T")


def make_report(checks: Iterable[Check]) -> dict[str, Any]:
    """The report as JSON values."""
    listed = [asdict(check) for check in checks]
    session = {"threads": SESSION_THREADS, "optimization": SESSION_OPTIMIZATION, **SESSION_CONFIG}
    passed = bool(listed) and all(check["passed"] for check in listed)
    return {"passed": passed, "provider": PROVIDER, "session": session, "checks": listed}


def verify_graphs(directory: Path, variant: Variant, model: Model, samples: Samples) -> Verification:
    """Every check of one variant, whose files are below `directory`, against the model they were exported from."""
    served = OrtGraphs(directory, variant, limits_of(model.config))
    seen: list[Check] = []
    if "attend" in served.roles:
        seen = AttentionVerifier(served, variant.precision, model, samples, variant.quantization).run()
    if isinstance(model, Encoder):
        suite = EncoderVerifier(served, variant.precision, model, samples, variant.quantization)
        return Verification((*suite.run(), *seen))
    found = GraphVerifier(served, variant.precision, model, samples, variant.quantization).run()
    return Verification((*found.checks, *seen), found.answers)


def verify_variants(
    directory: Path, variants: Sequence[Variant], model: Model, samples: Samples
) -> tuple[list[Check], Golden | None]:
    """Every check of several variants, and a golden answer that all of them give; None where there is none."""
    verified = [verify_graphs(directory, variant, model, samples) for variant in variants]
    checks = [check for verification in verified for check in verification.checks]
    limits, ends = limits_of(model.config), model.config.eos_ids
    if isinstance(model, Encoder):
        golden = _golden_vectors(directory, variants, limits, samples) if make_report(checks)["passed"] else None
    else:
        golden = common_golden(verified)
    if golden is not None:
        checks += [_check_golden(OrtGraphs(directory, variant, limits), golden, ends) for variant in variants]
    return checks, golden


def _golden_vectors(directory: Path, variants: Sequence[Variant], limits: Limits, samples: Samples) -> Golden:
    """What each variant makes of one text: the longest that is no extreme."""
    source = max(samples.sources, key=len)
    vectors = {
        variant.precision: golden_vector(OrtGraphs(directory, variant, limits), source, variant.precision)
        for variant in variants
    }
    return Golden(source=source, prompt=(), output=(), vectors=vectors)


def verify_bundle(bundle: Path, checkpoint: Path | None = None) -> dict[str, Any]:
    """The report on a finished bundle: its golden answer, and with its checkpoint everything that an export checks.

    Raises BundleError when a file is not what the manifest says, CheckpointError for the checkpoint.
    """
    manifest = load_bundle(bundle)
    size = sum(file.bytes for file in manifest.files.values())
    checks = [_equality("files", "", f"{len(manifest.files)} files, {size} bytes", "")]
    if manifest.shortlist:
        shortlist = load_shortlist(bundle / manifest.shortlist, vocab_size=manifest.limits.vocab_size)
        checks.append(_equality("shortlist", "", f"a shortlist of {len(shortlist.by_source)} source tokens", ""))
    for variant in manifest.variants:
        served = OrtGraphs(bundle, variant, manifest.limits)
        checks.append(_check_golden(served, manifest.golden, manifest.tokens.ends))
    if checkpoint is not None:
        loaded = load_checkpoint(checkpoint)
        theirs, ours = checkpoint_digest(checkpoint), manifest.lineage.get("checkpoint_sha256")
        difference = "" if theirs == ours else f"the bundle was made from {ours}"
        checks.append(_equality("made from this checkpoint", "", f"digests {theirs}", difference))
        samples = sample_inputs(loaded.config, loaded.tokenizer)
        for variant in manifest.variants:
            checks += verify_graphs(bundle, variant, loaded.model, samples).checks
    return make_report(checks)


def checkpoint_digest(checkpoint: Path) -> str:
    """SHA-256 of the digests of everything in a checkpoint."""
    return hashlib.sha256((checkpoint / DIGESTS).read_bytes()).hexdigest()


def _check_golden(served: OrtGraphs, golden: Golden, ends: Sequence[int]) -> Check:
    precision = served.variant.precision
    if golden.vectors:
        vector = golden.vectors[precision]
        off = vector_difference(vector, mean_state(served, golden.source))
        told = "" if off <= vector.tolerance else f"the vector differs by {off:.2g} of its largest value"
        return _equality("golden answer", precision, f"{len(golden.source)} source tokens", told)
    sources = [golden.source] if golden.source else []
    (answer,) = answer_greedily(served, sources, [golden.prompt], ends, len(golden.output))
    inputs = f"{len(golden.source)} source, {len(golden.prompt)} prompt and {len(golden.output)} new tokens"
    difference = "" if answer.tokens == golden.output else f"expected {golden.output}, got {answer.tokens}"
    return _equality("golden answer", precision, inputs, difference)


def _equality(name: str, precision: str, inputs: str, difference: str) -> Check:
    """A check that passes when there is no difference to tell of."""
    return Check(
        name=name,
        precision=precision,
        inputs=inputs,
        max_error=float(bool(difference)),
        tolerance=0.0,
        passed=not difference,
        note=difference,
    )


# ---- the graphs, run as a server runs them


class OrtGraphs:
    """`Graphs` of one variant in sessions such as a server's."""

    def __init__(self, directory: Path, variant: Variant, limits: Limits) -> None:
        self.directory, self.variant, self.limits = directory, variant, limits

    @cached_property
    def sessions(self) -> dict[str, onnxruntime.InferenceSession]:
        """By role; made when first used, so that a graph which cannot be loaded fails checks like any other fault."""
        return {role: _session(self.directory / graph.file) for role, graph in self.variant.graphs.items()}

    @property
    def roles(self) -> Collection[str]:
        return self.variant.graphs.keys()

    def roundings(self, *roles: Role) -> Roundings:
        graphs = {role: self.variant.graphs[role].file for role in roles if role in self.variant.graphs}
        return read_roundings({role: onnx.load(self.directory / file) for role, file in graphs.items()})

    def seen_products(
        self, sources: Sequence[Ids], tokens: Sequence[int], starts: Sequence[int], buffers: Arrays, cross: Arrays
    ) -> list[SeenProduct]:
        seen = []
        if "encode" in self.roles:
            seen += self._seen("encode", self._encoder_feeds(sources))
        asked = last_positions([[token] for token in tokens])
        return [*seen, *self._seen("decode", self._step_feeds(tokens, starts, buffers, cross, asked))]

    def _step_feeds(
        self,
        tokens: Sequence[int],
        starts: Sequence[int],
        buffers: Arrays,
        cross: Mapping[str, Array],
        asked: Sequence[tuple[int, int]],
    ) -> Arrays:
        """What `decode` reads in one step of some rows."""
        feeds: Arrays = {
            "tokens": np.array(tokens, np.int64)[:, None],
            "starts": np.array(starts, np.int64),
            "lengths": np.array(starts, np.int32) + 1,
            "total_length": np.array(_capacity_of(buffers), np.int32),
            **self._asked(asked),
            **{f"past.{name}": array for name, array in buffers.items()},
            **cross,
        }
        return self._read_by("decode", feeds)

    def _read_by(self, role: Role, feeds: Mapping[str, T]) -> dict[str, T]:
        """Those that a graph takes."""
        return {name: value for name, value in feeds.items() if name in self.variant.graphs[role].inputs}

    def _seen(self, role: Role, feeds: Mapping[str, Array]) -> list[SeenProduct]:
        """Runs a copy of a graph that also tells what its products read and give."""
        model = onnx.load(self.directory / self.variant.graphs[role].file)
        values = product_values(model)
        names = list(dict.fromkeys(name for _, *pair in values for name in pair))
        told = {value.name for value in model.graph.output}
        model.graph.output.extend(
            onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in names if name not in told
        )
        arrays = dict(zip(names, _session(model.SerializeToString()).run(names, dict(feeds)), strict=True))
        return [
            SeenProduct(weight, *(arrays[name].reshape(-1, arrays[name].shape[-1]) for name in (given, result)))
            for weight, given, result in values
        ]

    def seen_encoder_products(self, sources: Sequence[Ids], places: Sequence[Sequence[int]]) -> list[SeenProduct]:
        return self._seen("encode", self._encoder_feeds(sources, places))

    def encode(self, sources: Sequence[Ids], places: Sequence[Sequence[int]] = ()) -> Arrays:
        names = self.variant.graphs["encode"].outputs
        feeds = self._encoder_feeds(sources, places)
        return dict(zip(names, self.sessions["encode"].run(list(names), feeds), strict=True))

    def _encoder_feeds(self, sources: Sequence[Ids], places: Sequence[Sequence[int]] = ()) -> Arrays:
        """places: of each source those that are to be told, where the graph tells any."""
        length = round_up(max(map(len, sources)), PAD_MULTIPLE)
        feeds: Arrays = {"source": padded(sources, length), "source_lengths": lengths(sources)}
        if "places" in self.variant.graphs["encode"].inputs:
            flat = [row * length + place for row, own in enumerate(places) for place in own]
            feeds["places"] = np.array(flat or [0], np.int64)
        return feeds

    def buffers(self, rows: int, capacity: int) -> Arrays:
        arrays: Arrays = {}
        for state in self.variant.states:
            if state.kind not in ("cross_kv", "shortlist"):
                arrays[state.name] = _dirty(state, {"batch": rows, "capacity": state.places(capacity)})
        return arrays

    def decode(
        self,
        blocks: Sequence[Sequence[int]],
        starts: Sequence[int],
        buffers: Arrays,
        cross: Mapping[str, Array],
        *,
        top_k: int = 1,
        asked: Sequence[tuple[int, int]] | None = None,
    ) -> Prediction:
        run, prediction = self.step(blocks, starts, buffers, cross, top_k=top_k, asked=asked)
        run()
        return prediction

    def step(
        self,
        blocks: Sequence[Sequence[int]],
        starts: Sequence[int],
        buffers: Arrays,
        cross: Mapping[str, Array],
        *,
        top_k: int = 1,
        asked: Sequence[tuple[int, int]] | None = None,
    ) -> tuple[Callable[[], None], Prediction]:
        """`decode` and `logprobs`, bound but not run yet, and the arrays that they will fill. Running is repeatable."""
        is_prefill = not any(starts) and self.limits.max_block != 1
        length = round_up(max(map(len, blocks)), PAD_MULTIPLE if is_prefill else 1)
        capacity = _capacity_of(buffers)
        feeds = {
            "tokens": padded(blocks, length),
            "starts": np.array(starts, np.int64),
            "lengths": np.array(starts, np.int32) + lengths(blocks),
            "total_length": np.array(length if is_prefill else capacity, np.int32),
            **self._asked(asked := last_positions(blocks) if asked is None else asked),
        }
        rows = len(asked)
        prediction = Prediction(
            logits=np.full((rows, self.limits.vocab_size), np.nan, np.float32),
            logprobs=np.full((rows, self.limits.vocab_size), np.nan, np.float32),
            normaliser=np.full(rows, np.nan, np.float32),
            top_logprobs=np.full((rows, top_k), np.nan, np.float32),
            top_ids=np.full((rows, top_k), -1, np.int64),
        )
        value = onnxruntime.OrtValue.ortvalue_from_numpy
        states = {name: value(array) for name, array in {**buffers, **cross}.items()}
        told = {name: value(array) for name, array in prediction._asdict().items()}
        if "project_shortlist" in self.roles:
            told["states"] = value(np.full((len(blocks), self._state_width), np.nan, np.float32))
        inputs = {name: value(array) for name, array in feeds.items()}
        inputs |= {f"past.{name}" if name in buffers else name: states[name] for name in states}
        inputs |= {"logits": told["logits"], "top_k": value(np.array([top_k], np.int64))}
        roles = ("decode", "logprobs") if rows else ("decode",)
        bindings = {role: self.sessions[role].io_binding() for role in roles}
        for role, binding in bindings.items():
            graph = self.variant.graphs[role]
            for name in graph.inputs:
                binding.bind_ortvalue_input(name, inputs[name])
            for name in graph.outputs:
                # present.X and whatever else hands the state X through are its memory.
                binding.bind_ortvalue_output(name, told[name] if name in told else states[name.partition(".")[2]])
        bound = inputs, told, states  # values that lend the bindings memory of arrays

        def run(_bound: Any = bound) -> None:
            for role, binding in bindings.items():
                self.sessions[role].run_with_iobinding(binding)

        return run, prediction

    def _asked(self, positions: Sequence[tuple[int, int]]) -> Arrays:
        """What `decode` is told of them: nothing where it reads one token of each row, and tells of all."""
        if "asked" in self.variant.graphs["decode"].inputs:
            return {"asked": np.array([row for row, _ in positions], np.int64)}
        if self.limits.max_block == 1:
            return {}
        return {"positions": np.array(positions, np.int64).reshape(-1, 2)}

    @property
    def _state_width(self) -> int:
        (spec,) = [state for state in self.variant.states if state.name == "word_weight"]
        return int(spec.shape[1])

    def shortlist_logprobs(
        self,
        words: Sequence[Ids],
        tokens: Sequence[int],
        starts: Sequence[int],
        buffers: Arrays,
        cross: Mapping[str, Array],
        *,
        width: int,
    ) -> WordPrediction:
        step = self.sessions["decode"].run(["states"], self._step_feeds(tokens, starts, buffers, cross, ()))
        states: Array = step[0]
        kept = [state for state in self.variant.states if state.kind == "shortlist"]
        held = {state.name: _dirty(state, {"batch": len(words), "words": width}) for state in kept}
        for row, own in enumerate(words):
            told = self.sessions["project_shortlist"].run(
                [state.name for state in kept], {"ids": np.array([own], np.int64)}
            )
            for state, array in zip(kept, told, strict=True):
                held[state.name][row, ..., : len(own)] = array[0]
        feeds: Arrays = {
            "states": states,
            "word_counts": lengths(words),
            "word_places": np.arange(width, dtype=np.int32),
            "top_k": np.array([2], np.int64),
            **held,
        }
        names = ("logprobs", "normaliser", "top_logprobs", "top_ids")
        return WordPrediction(states, *self.sessions["shortlist_logprobs"].run(list(names), feeds))

    def align(self, targets: Sequence[Ids], cross: Mapping[str, Array]) -> Array:
        tokens = padded(targets, round_up(max(map(len, targets)), PAD_MULTIPLE))
        feeds = self._read_by("align", {"tokens": tokens, **cross})
        (attention,) = self.sessions["align"].run(["cross_attention"], feeds)
        result: Array = attention
        return result

    def attend(self, sources: Sequence[Ids], targets: Sequence[Ids]) -> Arrays:
        feeds: Arrays = {}
        for rows, tokens, counts in ((sources, "source", "source_lengths"), (targets, "tokens", "lengths")):
            if tokens in self.variant.graphs["attend"].inputs:
                feeds[tokens] = padded(rows, round_up(max(map(len, rows)), PAD_MULTIPLE))
                feeds[counts] = lengths(rows)
        names = self.variant.graphs["attend"].outputs
        return dict(zip(names, self.sessions["attend"].run(list(names), feeds), strict=True))


def _dirty(state: StateSpec, sizes: Mapping[str, int]) -> Array:
    """A state full of garbage. sizes: of its symbolic axes."""
    return garbage([sizes[axis] if isinstance(axis, str) else axis for axis in state.shape], state.dtype)


@cache
def is_batch_invariant(scheme: QuantizationScheme) -> bool:
    """Whether a product in blocks gives a row the same bits alone and among others on this processor; tried, because
    processors without AVX-512 have kernels of their own. The other schemes compute exact sums everywhere."""
    if not scheme.block_size:
        return True
    tensor = onnx.helper.make_tensor_value_info
    random = np.random.default_rng(1)
    weight_KN, x_BK = (random.standard_normal(shape).astype(np.float32) for shape in ((512, 64), (4, 512)))
    product = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "weight"], ["y"])],
        "product",
        [tensor("x", onnx.TensorProto.FLOAT, ["B", 512])],
        [tensor("y", onnx.TensorProto.FLOAT, ["B", 64])],
        [onnx.numpy_helper.from_array(weight_KN, "weight")],
    )
    model = onnx.helper.make_model(product, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
    session = _session(quantize(model, "decode", scheme).SerializeToString())
    (together_BN,) = session.run(["y"], {"x": x_BK})
    return all(np.array_equal(session.run(["y"], {"x": x_BK[:rows]})[0], together_BN[:rows]) for rows in (1, 2, 3))


def _capacity_of(buffers: Arrays) -> int:
    """Positions that caches have room for; 0 where there are none."""
    return next((array.shape[2] for array in buffers.values() if array.ndim == CACHE_AXES), 0)


def _session(file: Path | bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = SESSION_THREADS
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, SESSION_OPTIMIZATION)
    options.log_severity_level = 3
    options.enable_mem_pattern = SESSION_MEM_PATTERN
    for key, text in SESSION_CONFIG.items():
        options.add_session_config_entry(key, text)
    return onnxruntime.InferenceSession(file, options, providers=[PROVIDER])


def limits_of(config: ModelConfig) -> Limits:
    """What a model can take."""
    return Limits(
        vocab_size=config.vocab_size,
        max_source_len=config.max_source_len if config.has_encoder else 0,
        max_target_len=config.max_target_len if config.has_decoder else 0,
        max_block=0 if config.supports_chunked_prefill else 1,
    )
