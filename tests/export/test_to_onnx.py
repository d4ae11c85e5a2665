"""From a model to a bundle: what is in it, for every kind of model, and what is refused before and after."""

from collections import Counter
from unittest import mock

import onnx
import onnxruntime
import pytest
import safetensors.torch
import torch
from onnx import numpy_helper

from export import variants
from export.bundle import BundleExistsError, load_bundle, load_shortlist
from export.export_errors import ExportError, ParityError
from export.graph_checks import check_graph
from export.graphs import encoder_decoder
from export.graphs.tracing import trace
from export.manifest import SESSION_CONFIG, SESSION_OPTIMIZATION, AlignmentSpec, AttentionMaps
from export.manifest_entries import alignment_of
from export.options import AUTOMATIC, QuantizationOptions, scheme_names
from export.passes.calibrate import calibrate
from export.passes.optimize import optimize
from export.passes.quantization_scheme import SCHEMES
from export.select_scheme import Development
from export.to_onnx import export_bundle, export_model
from export.variants import calibration_ids, save_variant, trace_model
from export.verification.golden import common_golden
from export.verification.inputs import sample_inputs
from export.verification.verifier import make_report, verify_graphs
from model.checkpoint import CheckpointError, save_checkpoint, weights_of
from model.config import TrainConfig
from tests.tiny import TEXTS, tiny_config, tiny_model, tiny_tokenizer


def operators(bundle, role):
    return Counter(node.op_type for node in onnx.load(bundle / "fp32" / f"{role}.onnx").graph.node)


def test_a_bundle_is_complete_and_verified(tiny_translation_bundle, tiny_generation_bundle):
    translation, generation = load_bundle(tiny_translation_bundle), load_bundle(tiny_generation_bundle)
    assert translation.task == "translation"
    assert generation.task == "generation"
    assert list(translation.files) == ["fp32/decode.onnx", "fp32/encode.onnx", "fp32/logprobs.onnx", "tokenizer.json"]
    assert list(generation.files) == ["fp32/decode.onnx", "fp32/logprobs.onnx", "tokenizer.json"]
    assert (translation.limits.max_block, generation.limits.max_block) == (1, 0)
    assert (translation.limits.max_source_len, generation.limits.max_source_len) == (64, 0)
    assert {state.kind for state in translation.variant("fp32").states} == {"self_kv", "cross_kv"}
    assert {state.kind for state in generation.variant("fp32").states} == {"self_kv"}
    assert translation.golden.prompt == (1,)
    assert translation.golden.source[-1] == 2
    assert translation.lineage["model"]["d_model"] == 32
    assert set(translation.lineage["export"]) >= {"torch", "onnx", "onnxruntime", "opset"}


def test_graphs_have_the_names_of_the_manifest_and_the_axes_of_the_contract(tiny_translation_bundle):
    for spec in load_bundle(tiny_translation_bundle).variant("fp32").graphs.values():
        graph = onnx.load(tiny_translation_bundle / spec.file).graph
        assert tuple(value.name for value in graph.input) == spec.inputs
        assert tuple(value.name for value in graph.output) == spec.outputs
        axes = {
            value.name: tuple(dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim)
            for value in (*graph.input, *graph.output)
        }
        if spec.role == "encode":
            assert axes["source"] == ("batch", "source")
            assert axes["encoder_states"] == ("batch", "source", 32)
            assert axes["cross_value.1"] == ("batch", 4, "source", 8)
        elif spec.role == "logprobs":
            assert axes["logits"] == axes["logprobs"] == ("asked", 27)
            assert axes["normaliser"] == ("asked",)
            assert axes["top_k"] == (1,)
            assert axes["top_logprobs"] == axes["top_ids"] == ("asked", "top_k")
        else:
            assert axes["tokens"] == ("batch", 1)
            assert axes["total_length"] == ()
            assert axes["past.self_key.0"] == axes["present.self_value.1"] == ("batch", 4, "capacity", 8)
            assert axes["cross_key.1"] == ("batch", 4, "source", 8)
            assert axes["logits"] == ("batch", 27)


def test_a_decoder_that_reads_blocks_is_told_behind_which_tokens_it_is_asked(tiny_generation_bundle):
    graph = onnx.load(tiny_generation_bundle / "fp32/decode.onnx").graph
    axes = {
        value.name: tuple(dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in (*graph.input, *graph.output)
    }
    assert axes["tokens"] == ("batch", "block")
    assert axes["positions"] == ("asked", 2)
    assert axes["logits"] == ("asked", 27)
    assert sum(node.op_type == "GatherND" for node in graph.node) == 1


def test_attention_adds_a_graph_and_changes_no_other(tiny_translation_bundle, tiny_attention_bundle):
    plain, manifest = load_bundle(tiny_translation_bundle), load_bundle(tiny_attention_bundle)
    assert (plain.alignment, plain.attention_maps) == (None, ())
    assert manifest.alignment == AlignmentSpec(layers=2, heads=4, default_layer=2)
    added = {name: digest for name, digest in manifest.files.items() if name not in plain.files}
    words = ["fp32/project_shortlist.onnx", "fp32/shortlist_logprobs.onnx", "shortlist.json"]
    assert sorted(added) == ["fp32/align.onnx", "fp32/attend.onnx", *words]
    changed = [name for name, digest in plain.files.items() if manifest.files[name] != digest]
    assert changed == ["fp32/decode.onnx"], "by the shortlist alone"
    spec = manifest.variant("fp32").graphs["align"]
    crosses = [f"cross_{part}.{i}" for i in range(2) for part in ("key", "value")]
    assert spec.inputs == ("tokens", "source_lengths", *crosses)
    graph = onnx.load(tiny_attention_bundle / spec.file).graph
    (output,) = graph.output
    axes = [dim.dim_param or dim.dim_value for dim in output.type.tensor_type.shape.dim]
    assert (output.name, axes) == ("cross_attention", [2, "batch", 4, "block", "source"])
    assert {node.domain for node in graph.node} == {""}
    names = {tensor.name for tensor in graph.initializer}
    assert not any("blocks.1.feed_forward" in name or "decoder.norm" in name for name in names), "computed in vain"
    checks = {check["name"]: check["passed"] for check in manifest.parity["checks"]}
    assert checks["attention against PyTorch"]
    assert checks["attention stays within the source"]


def test_one_graph_tells_every_alignment_of_a_pass(tiny_attention_bundle):
    manifest = load_bundle(tiny_attention_bundle)
    assert manifest.attention_maps == tuple(
        AttentionMaps(kind=kind, layers=2, heads=4) for kind in ("encoder", "decoder", "cross")
    )
    spec = manifest.variant("fp32").graphs["attend"]
    assert spec.inputs == ("source", "source_lengths", "tokens", "lengths")
    graph = onnx.load(tiny_attention_bundle / spec.file).graph
    axes = {
        output.name: [dim.dim_param or dim.dim_value for dim in output.type.tensor_type.shape.dim]
        for output in graph.output
    }
    assert axes == {
        "encoder_attention": [2, "batch", 4, "source", "source"],
        "decoder_attention": [2, "batch", 4, "block", "block"],
        "cross_attention": [2, "batch", 4, "block", "source"],
    }
    assert tuple(axes) == spec.outputs
    assert {node.domain for node in graph.node} == {""}
    names = {tensor.name for tensor in graph.initializer}
    assert not any("decoder.blocks.1.feed_forward" in name or "decoder.norm" in name for name in names), "in vain"
    checks = {check["name"]: check for check in manifest.parity["checks"]}
    assert checks["every attention against PyTorch"]["tolerance"] == 1e-5
    assert checks["every attention against PyTorch"]["passed"]
    assert checks["every attention stays within its rows"]["passed"]


@pytest.mark.parametrize(("layers", "expected"), [(1, 1), (2, 2), (3, 2), (6, 5)])
def test_words_are_aligned_by_the_last_layer_but_one(layers, expected):
    config = tiny_config(num_decoder_layers=layers)
    assert alignment_of(config) == AlignmentSpec(layers=layers, heads=4, default_layer=expected)


def test_a_model_without_a_source_has_no_shortlist(tmp_path):
    model, parallel = tiny_model(tiny_config("decoder")), [("a", "b")]
    with pytest.raises(ExportError, match="shortlist: only models that translate have it"):
        export_model(model, tiny_tokenizer(), tmp_path / "out", parallel=parallel)
    assert list(tmp_path.iterdir()) == []


def test_words_of_a_quantised_model_are_integers_whatever_its_form(tmp_path):
    pairs = [(text, text) for text in TEXTS]
    for number, scheme in enumerate(("w8a8-dynamic", "w8a8-static-kv8", "w8-block64")):
        schemes = QuantizationOptions(scheme=scheme, max_loss=100.0, development=Development(TEXTS, TEXTS, "texts"))
        model = tiny_model(tiny_config("encoder_decoder"), seed=number + 1)
        manifest = export_model(
            model,
            tiny_tokenizer(),
            tmp_path / scheme,
            precisions=("int8",),
            quantization=schemes,
            texts=TEXTS,
            parallel=pairs,
        )
        kept = {state.name: state.dtype for state in manifest.variant("int8").states if state.kind == "shortlist"}
        expected = {"word_ids": "int64", "word_weight": "int8", "word_scale": "float32", "word_sum": "int32"}
        assert kept == expected


def test_a_shortlist_is_a_file_of_the_bundle(tiny_attention_bundle, tiny_translation_bundle):
    manifest, tokenizer = load_bundle(tiny_attention_bundle), tiny_tokenizer()
    assert (manifest.shortlist, load_bundle(tiny_translation_bundle).shortlist) == ("shortlist.json", "")
    assert manifest.lineage["shortlist"] == {"pairs": len(TEXTS), "held_out": 0}
    shortlist = load_shortlist(tiny_attention_bundle / manifest.shortlist, vocab_size=manifest.limits.vocab_size)
    allowed = shortlist.allowed([*tokenizer.encode("birds sing"), 2])
    assert allowed >= {2, *tokenizer.encode(TEXTS[2])}
    assert not allowed & set(tokenizer.encode("black cat sleeps under"))


def test_text_from_which_nothing_can_be_learned_is_refused(tmp_path):
    with pytest.raises(ExportError, match=r"shortlist: no pair has 1\.\.100 tokens"):
        export_model(tiny_model(tiny_config()), tiny_tokenizer(), tmp_path / "out", parallel=[("", "the")])
    assert list(tmp_path.iterdir()) == []


def test_nodes_are_as_many_as_they_should_be(tiny_translation_bundle, tiny_generation_bundle):
    """A fusion that fails is silent; so is an exporter that starts to write an operator in pieces."""
    encode, decode = operators(tiny_translation_bundle, "encode"), operators(tiny_translation_bundle, "decode")
    layers = 2
    assert encode["MatMul"] == layers * 4 + layers  # 4 weights a layer, then keys and values
    assert (encode["GroupQueryAttention"], encode["Softmax"]) == (layers, 0)
    assert encode["LayerNormalization"] == 2 * layers + 1
    assert decode["GroupQueryAttention"] == 2 * layers
    assert decode["MatMul"] == layers * 6
    assert decode["LayerNormalization"] == 3 * layers + 1
    assert decode["Split"] == decode["Identity"] == decode["Transpose"] == decode["Reshape"] == 0
    assert (decode["LogSoftmax"], decode["TopK"]) == (0, 0)
    assert sum(decode.values()) <= 59
    decode = operators(tiny_generation_bundle, "decode")
    assert decode["GroupQueryAttention"] == layers
    assert decode["MatMul"] == layers * 4
    assert decode["Split"] == decode["Identity"] == decode["Transpose"] == decode["Reshape"] == 0


@pytest.mark.parametrize("kind", ["translation", "generation"])
def test_the_runtime_keeps_one_softmax_and_one_choice_of_the_best(kind, request, tmp_path):
    """Under the settings of a server no optimiser may compute either twice, or take the softmax into pieces."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, SESSION_OPTIMIZATION)
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3
    for key, value in SESSION_CONFIG.items():
        options.add_session_config_entry(key, value)
    bundle = request.getfixturevalue(f"tiny_{kind}_bundle")
    onnxruntime.InferenceSession(bundle / "fp32/logprobs.onnx", options, providers=["CPUExecutionProvider"])
    counts = Counter(node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node)
    assert (counts["LogSoftmax"], counts["TopK"], counts["ReduceLogSumExp"], counts["Exp"]) == (1, 1, 0, 0)


def test_tied_embeddings_are_one_constant_of_gather_and_head(tiny_translation_bundle):
    graph = onnx.load(tiny_translation_bundle / "fp32/decode.onnx").graph
    table = numpy_helper.to_array(next(t for t in graph.initializer if t.name.endswith("embedding.tokens.weight")))
    same = [tensor.name for tensor in graph.initializer if sorted(tensor.dims) == sorted(table.shape)]
    assert same == ["encoder.embedding.tokens.weight"]
    users = [node.op_type for node in graph.node if same[0] in node.input]
    assert users == ["Gather", "Gemm"]


def test_graphs_tell_nothing_of_the_machine_they_were_made_on(tiny_translation_bundle):
    for role in ("encode", "decode"):
        data = (tiny_translation_bundle / f"fp32/{role}.onnx").read_bytes()
        for word in (b".py", b"torch", b"/usr", b"/home", b"site-packages", b"namespace", b"pkg."):
            assert word not in data, (role, word)


VARIANTS = {
    "rotary": tiny_config(
        "decoder", positions="rotary", norm="rms", num_kv_heads=2, gated=True, activation="silu", bias=False,
        head_dim=16, tie_embeddings=False, num_decoder_layers=1,
    ),
    "post-norm": tiny_config(
        norm_position="post", positions="learned", activation="gelu", num_kv_heads=1, tie_embeddings=False,
        num_encoder_layers=1, num_decoder_layers=1, max_source_len=29, max_target_len=21,
    ),
    "rotary-source": tiny_config(
        positions="rotary", norm="rms", norm_position="post", gated=True, activation="gelu", num_kv_heads=2,
        num_encoder_layers=1, num_decoder_layers=1,
    ),
    "shaw": tiny_config("decoder", positions="shaw", position_range=3, num_decoder_layers=1),
    "bucketed": tiny_config(
        positions="bucketed", position_buckets=8, position_range=16, attention_scale=1.0, embedding_scale=1.0,
        num_kv_heads=2, num_encoder_layers=1, num_decoder_layers=1,
    ),
    "alibi-window": tiny_config("decoder", positions="alibi", sliding_window=5, num_decoder_layers=1),
    "beside": tiny_config(
        positions="learned", position_dim=8, tie_embeddings=False, embedding_norm=True, output_bias=True,
        num_encoder_layers=1, num_decoder_layers=1,
    ),
    "parallel": tiny_config(
        "decoder", positions="rotary", head_dim=16, rotary_dims=8, rotary_scaling="llama3", rotary_factor=8.0,
        rotary_original_len=16, parallel_residual=True, qk_norm=True, bias=False, qkv_bias=True, num_decoder_layers=1,
    ),
    "compressed": tiny_config("decoder", compression_stride=3, sliding_window=4, num_kv_heads=2),
    "unequal-sides": tiny_config(encoder_num_heads=2, encoder_d_ff=96, num_encoder_layers=1, num_decoder_layers=1),
    "experts": tiny_config(num_experts=3, num_encoder_layers=1, num_decoder_layers=1),
    "two-experts": tiny_config(
        "decoder", num_experts=4, experts_per_token=2, gated=True, activation="gelu", bias=False, num_decoder_layers=1
    ),
}  # fmt: skip


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS.keys())
def test_every_kind_of_model_passes_verification(config, tmp_path):
    model = tiny_model(config, seed=3)
    variant = save_variant(model, tmp_path, "fp32", attention=True)
    verification = verify_graphs(tmp_path, variant, model, sample_inputs(config))
    assert [check for check in verification.checks if not check.passed] == []
    assert common_golden([verification.answers]) is not None


@pytest.mark.parametrize(
    ("name", "schemes"),
    [
        ("bucketed", "w8a8-dynamic w8a8-static-kv8"),
        ("alibi-window", "w8a8-static w8a8-dynamic-kv8"),
        ("two-experts", "w8a8-dynamic w8a8-static"),
    ],
)
def test_fewer_bits_go_with_positions_on_scores_and_with_experts(name, schemes, tmp_path):
    config = VARIANTS[name]
    model, samples = tiny_model(config, seed=3), sample_inputs(config)
    sources = samples.sources or ((),) * len(samples.targets)
    ranges = calibrate(model, list(zip(sources, samples.targets, strict=True)))
    traced = trace_model(model)
    for scheme in schemes.split():
        place = tmp_path / scheme
        variant = save_variant(model, place, SCHEMES[scheme], ranges=ranges, traced=traced)
        checks = verify_graphs(place, variant, model, samples).checks
        assert [(check.name, check.note) for check in checks if not check.passed] == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"compression_stride": 3, "sliding_window": 4},
            "scheme: w8a8-dynamic-kv8 keeps int8 keys and values, and those of a model with compr",
        ),
        (
            {"qk_norm": True},
            "w8a8-dynamic-kv8 keeps int8 keys and values, and those of a model with qk_norm .*; take w8a8-dynamic$",
        ),
    ],
)
def test_int8_caches_of_what_no_calibration_sees_are_refused_and_not_tried(changes, message, tmp_path):
    model = tiny_model(tiny_config("decoder", **changes))
    schemes = QuantizationOptions(scheme="w8a8-dynamic-kv8")
    with pytest.raises(ExportError, match=message):
        export_model(model, tiny_tokenizer(), tmp_path / "out", precisions=("int8",), quantization=schemes, texts=TEXTS)
    assert scheme_names("int8", "auto", model.config) == ("w8a8-dynamic", "w8a8-static")
    assert scheme_names("int8", "auto", tiny_config()) == AUTOMATIC["int8"]


def test_half_precision_is_a_second_variant_with_the_same_golden_answer(tmp_path):
    model = tiny_model(tiny_config("decoder", num_decoder_layers=1))
    manifest = export_model(model, tiny_tokenizer(), tmp_path / "out", precisions=("fp32", "fp16"), texts=TEXTS)
    assert [variant.precision for variant in manifest.variants] == ["fp32", "fp16"]
    assert {state.dtype for state in manifest.variant("fp16").states} == {"float16"}
    golden = [check["precision"] for check in manifest.parity["checks"] if check["name"] == "golden answer"]
    assert golden == ["fp32", "fp16"]
    errors = {c["precision"]: c["max_error"] for c in manifest.parity["checks"] if c["name"].startswith("cached steps")}
    assert errors["fp32"] < 1e-5 < errors["fp16"]
    sizes = [manifest.files[f"{precision}/decode.onnx"].bytes for precision in ("fp32", "fp16")]
    assert sizes[1] < 0.65 * sizes[0]
    assert model.decoder.unembedding.weight.dtype == torch.float32


@pytest.mark.usefixtures("fresh_traces")
def test_exporting_twice_gives_the_same_bytes_and_leaves_the_model_alone(tmp_path):
    model = tiny_model(tiny_config("decoder", num_decoder_layers=1))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        variant = save_variant(model, tmp_path / name, "fp32", inline_limit=1 << 30 if name == "one" else 0)
    one, two = onnx.load(tmp_path / "one/fp32/decode.onnx"), onnx.load(tmp_path / "two/fp32/decode.onnx")
    for tensor in two.graph.initializer:  # loading has taken the weights back in, and left a mark
        tensor.ClearField("data_location")
    assert one.SerializeToString() == two.SerializeToString()
    assert [file.name for file in (tmp_path / "two/fp32").iterdir()] != ["decode.onnx"]
    assert (tmp_path / "two/fp32/decode.onnx").stat().st_size < (tmp_path / "one/fp32/decode.onnx").stat().st_size / 2
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert not model.training
    assert make_report(verify_graphs(tmp_path / "two", variant, model, sample_inputs(model.config)).checks)["passed"]


def test_a_graph_without_its_fusions_is_refused():
    model = tiny_model(tiny_config("decoder", num_decoder_layers=1))
    traced = trace(encoder_decoder.signatures(model)["decode"])
    with pytest.raises(ExportError, match=r"decode: the graph must have 1 attention nodes with packed .*, got 0"):
        check_graph(traced, "decode", model.config)
    check_graph(optimize(traced), "decode", model.config)
    with pytest.raises(ExportError, match="must have 2 GroupQueryAttention nodes, got 1"):
        check_graph(traced, "decode", tiny_config("decoder", num_decoder_layers=2))


def test_logits_in_half_precision_are_refused():
    """Verification could not tell: on a CPU the runtime computes it in float32 all the same."""
    model = tiny_model(tiny_config("decoder", num_decoder_layers=1)).half()
    graph = optimize(trace(encoder_decoder.signatures(model)["decode"]))
    check_graph(graph, "decode", model.config)
    (cast,) = [node for node in graph.graph.node if "logits" in node.output]
    assert cast.op_type == "Cast"
    graph.graph.node.remove(cast)
    (head,) = [node for node in graph.graph.node if cast.input[0] in node.output]
    head.output[0] = "logits"
    with pytest.raises(ExportError, match="decode: logits must be float32"):
        check_graph(graph, "decode", model.config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 8}, r"head_dim: must be a multiple of 8 .* got 4; train with another"),
        ({"vocab_size": 20}, "vocab_size: the model has 20, its tokenizer 27"),
    ],
)
def test_a_model_that_cannot_run_is_refused_before_it_is_traced(changes, message, tmp_path):
    with pytest.raises(ExportError, match=message):
        export_model(tiny_model(tiny_config(**changes)), tiny_tokenizer(), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_model_in_training_mode_is_refused(tmp_path):
    with pytest.raises(ExportError, match="training mode"):
        export_model(tiny_model(tiny_config()).train(), tiny_tokenizer(), tmp_path / "out")


def without_tracing(monkeypatch, bundle):
    """Exports whose graphs are those of a finished bundle, so that a test need not trace."""

    def copy(model, directory, precision, **_):
        (directory / precision).mkdir()
        for file in (bundle / precision).iterdir():
            (directory / precision / file.name).write_bytes(file.read_bytes())
        return load_bundle(bundle).variant(precision)

    monkeypatch.setattr(variants, "save_variant", copy)


def test_graphs_of_another_model_never_become_a_bundle(tiny_generation_bundle, tmp_path, monkeypatch):
    without_tracing(monkeypatch, tiny_generation_bundle)
    with pytest.raises(
        ParityError, match=r"verification refused the graphs; nothing was written; prefill .* over 5e-05"
    ) as refusal:
        export_model(tiny_model(tiny_config("decoder"), seed=2), tiny_tokenizer(), tmp_path / "out")
    assert refusal.value.report["passed"] is False
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def checkpoint(tmp_path):
    path = tmp_path / "checkpoint"
    lineage = {"seed": 4, "git_commit": None, "data_sha256": "0" * 64}
    train, metrics = TrainConfig(steps=1), {"bleu": 12.5}
    model = tiny_model(tiny_config("decoder"))
    weights, tokenizer = weights_of(model), tiny_tokenizer()
    save_checkpoint(path, model.config, weights, tokenizer=tokenizer, train=train, metrics=metrics, lineage=lineage)
    return path


def test_a_bundle_knows_where_it_comes_from(checkpoint, tiny_generation_bundle, tmp_path, monkeypatch):
    without_tracing(monkeypatch, tiny_generation_bundle)
    manifest = export_bundle(checkpoint, tmp_path / "out", texts=TEXTS)
    assert manifest.lineage["seed"] == 4
    assert manifest.lineage["metrics"] == {"bleu": 12.5}
    assert len(manifest.lineage["checkpoint_sha256"]) == 64
    assert load_bundle(tmp_path / "out") == manifest
    with pytest.raises(BundleExistsError):
        export_bundle(checkpoint, tmp_path / "out")
    assert export_bundle(checkpoint, tmp_path / "out", replace=True).golden == load_bundle(tmp_path / "out").golden


def test_an_export_reads_the_weights_once(checkpoint, tiny_generation_bundle, tmp_path, monkeypatch):
    read = mock.Mock(wraps=safetensors.torch.load)
    mapped = mock.Mock(wraps=safetensors.torch.load_file)
    monkeypatch.setattr(safetensors.torch, "load", read)
    monkeypatch.setattr(safetensors.torch, "load_file", mapped)
    without_tracing(monkeypatch, tiny_generation_bundle)
    export_bundle(checkpoint, tmp_path / "out", texts=TEXTS)
    assert read.call_count + mapped.call_count == 1


def test_a_checkpoint_cut_short_is_refused(checkpoint, tmp_path):
    weights = checkpoint / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(CheckpointError, match=r"model.safetensors"):
        export_bundle(checkpoint, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_without_text_to_measure_on_there_is_no_quantised_variant(tmp_path, monkeypatch):
    monkeypatch.setattr(variants, "trace_model", lambda *_, **__: None)
    monkeypatch.setattr(variants, "save_variant", lambda *_, **__: None)
    model = tiny_model(tiny_config("decoder"))
    with pytest.raises(ExportError, match=r"int8: there is no text to measure on .* fix: .*--development FILE"):
        export_model(model, tiny_tokenizer(), tmp_path / "out", precisions=("fp32", "int8"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder"])
def test_a_bundle_keeps_the_chosen_form_alone_and_the_figures_of_all(architecture, tmp_path):
    model, limit = tiny_model(tiny_config(architecture)), 100.0
    schemes = QuantizationOptions(max_loss=limit)
    manifest = export_model(
        model, tiny_tokenizer(), tmp_path / "out", precisions=("int8", "fp32"), quantization=schemes, texts=TEXTS
    )
    assert [variant.precision for variant in manifest.variants] == ["int8", "fp32"]
    int8 = manifest.variant("int8")
    assert [figures.scheme for figures in int8.comparison] == ["fp32", *AUTOMATIC["int8"]]
    (taken,) = [figures.scheme for figures in int8.comparison if figures.chosen]
    assert int8.quantization is not None
    assert int8.quantization.scheme == taken
    assert {path.name for path in (tmp_path / "out").iterdir() if path.is_dir()} == {"int8", "fp32"}
    assert load_bundle(tmp_path / "out") == manifest


def test_sources_without_references_are_answered_for_calibration():
    model, tokenizer = tiny_model(tiny_config()), tiny_tokenizer()
    samples = calibration_ids(model, tokenizer, QuantizationOptions(development=Development(TEXTS)))
    assert len(samples) == len(TEXTS)
    for (source, target), text in zip(samples, TEXTS, strict=True):
        assert source == [*tokenizer.encode(text), 2]
        assert target[0] == 1
        assert 2 not in target


def test_long_texts_are_cut_for_calibration():
    model, tokenizer = tiny_model(tiny_config("decoder")), tiny_tokenizer()
    text = " ".join(TEXTS * 5)
    samples = calibration_ids(model, tokenizer, QuantizationOptions(calibration=[("", text)]))
    assert [token for _, target in samples for token in target[1:]] == tokenizer.encode(text)
    assert max(len(target) for _, target in samples) == model.config.max_target_len
