"""The table of operators: what exports of every architecture, mechanism, scheme and family contain, and nothing more.

Graphs are saved without the verification that a bundle gets, and every rule for graphs is checked on their files.
"""

import copy
import dataclasses
from typing import Any, get_args

import pytest

from export.bundle.graph_rules import OPERATORS, check_graph
from export.bundle.manifest import FileDigest
from export.bundle.onnx_reader import read_model
from export.options import int8_cache_problem
from export.passes.calibrate import calibrate
from export.passes.quantization_scheme import SCHEMES
from export.variants import save_variant, trace_model
from model.architectures import build
from model.checkpoints.checkpoint import load_checkpoint
from model.config_parts import DenseActivation
from model.pretrained.import_checkpoint import import_checkpoint, import_model
from model.tokenizer import Tokenizer
from tests.export.bundle.manifests import a_manifest
from tests.tiny import EMBEDDER, ENCODERS, tiny_config, tiny_encoder, tiny_model

pytestmark = pytest.mark.slow

ALL = tuple(SCHEMES)
FLOATS = ("fp32", "fp16")
PLAIN = ("fp32",)
ONE_LAYER = {"num_encoder_layers": 1, "num_decoder_layers": 1}
TWO_LAYERS = {"num_decoder_layers": 2}
OWN: dict[str, tuple[Any, dict[str, Any], tuple[str, ...]]] = {  # name: architecture, mechanisms, schemes
    "translation": ("encoder_decoder", {}, ALL),
    "ensemble": ("encoder_decoder", {"ensemble_size": 2, "num_encoder_layers": 2, "num_decoder_layers": 2}, ALL),
    "rms, gated": ("encoder_decoder", {"norm": "rms", "gated": True, "activation": "silu", "bias": False}, FLOATS),
    "after the layers": ("encoder_decoder", {"norm_position": "post", "activation": "gelu_tanh"}, PLAIN),
    "shaw": ("encoder_decoder", {"positions": "shaw", "position_range": 4}, FLOATS),
    "bucketed": ("encoder_decoder", {"positions": "bucketed", "position_buckets": 8, "position_range": 16}, FLOATS),
    "alibi": ("encoder_decoder", {"positions": "alibi"}, FLOATS),
    "learned": ("encoder_decoder", {"positions": "learned"}, PLAIN),
    "none": ("encoder_decoder", {"positions": "none"}, PLAIN),
    "rotary": ("encoder_decoder", {"positions": "rotary"}, FLOATS),
    "generation": ("decoder", {}, ALL),
    "rotary decoder": ("decoder", {"positions": "rotary", "num_kv_heads": 2, "qk_norm": True, "norm": "rms"}, FLOATS),
    "window": ("decoder", {"positions": "rotary", "sliding_window": 4, "embedding_norm": True}, PLAIN),
    "layers that differ": (
        "decoder",
        {
            **TWO_LAYERS,
            "positions": "rotary",
            "norm_position": "sandwich",
            "attention_softcap": 2.0,
            "logits_softcap": 3.0,
            "layer_groups": ({"layers": (0,), "sliding_window": 4, "rotary_base": 100.0},),
        },
        ALL,
    ),
    "compressed": ("decoder", {**TWO_LAYERS, "compression_stride": 3, "sliding_window": 4, "num_kv_heads": 2}, FLOATS),
    "experts": ("decoder", {"num_experts": 3, "experts_per_token": 2}, FLOATS),
    "shaw decoder": ("decoder", {"positions": "shaw", "position_range": 4}, PLAIN),
    "bucketed decoder": ("decoder", {"positions": "bucketed", "position_buckets": 8, "position_range": 16}, PLAIN),
    "alibi decoder": ("decoder", {"positions": "alibi"}, PLAIN),
    "lstm": ("recurrent", {}, ("fp32", "fp16", "w8a8-dynamic", "w8a8-static")),
    "gru": ("recurrent", {"cell": "gru", "score": "additive", "num_encoder_layers": 1}, PLAIN),
    "dot": ("recurrent", {"cell": "gru", "score": "dot", "encoder_dim": 0, "input_feeding": False}, PLAIN),
    "no score": ("recurrent", {"score": "none", "input_feeding": False, "bidirectional": False}, PLAIN),
}
DECODERS = (
    "gpt2",
    "llama3",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "phi",
    "phi3",
    "gemma2",
    "gemma3_text",
    "smollm3",
    "olmo2",
    "granite",
    "hunyuan_v1_dense",
)
SEQ2SEQ = ("marian", "bart", "mbart", "m2m_100", "t5", "t5-1.1", "mt5")
BERTS = {
    "bert": "Model",
    "roberta": "ForSequenceClassification",
    "xlm-roberta": "ForMaskedLM",
    "distilbert": "ForMaskedLM",
}
IMPORTED = DECODERS + SEQ2SEQ + tuple(BERTS)


def operators(graph):
    """Every node of a graph and of those inside of it: domain, operator, attributes with their types."""
    for node in graph["node"]:
        attributes = node.get("attribute", [])
        names = frozenset((attribute["name"], attribute["type"]) for attribute in attributes)
        yield node.get("domain", ""), node["op_type"], names
        for attribute in attributes:
            if "graph" in attribute:
                yield from operators(attribute["graph"])


def found_in(model, schemes, directory):
    """The operators of a model's graphs, saved in each scheme and checked."""
    found = set()
    config = model.config
    attention = not config.is_recurrent or config.score != "none"
    shortlist = config.has_encoder and config.has_decoder and getattr(config, "ensemble_size", 1) == 1
    traced = trace_model(model, attention=attention, shortlist=shortlist)
    ranges = None
    for name in schemes:
        scheme = SCHEMES[name]
        if scheme.has_int8_cache and int8_cache_problem(config):
            continue
        if scheme.needs_ranges and ranges is None:
            ranges = calibrate(model, [([5, 2] if config.has_encoder else [], [1, 5] if config.has_decoder else [])])
        source = traced
        if scheme.is_half:
            source = trace_model(copy.deepcopy(model).half(), attention=attention, shortlist=shortlist)
        variant = save_variant(source, directory / name, scheme, ranges=ranges)
        sizes = {
            str(file.relative_to(directory / name)): FileDigest(sha256="0" * 64, bytes=file.stat().st_size)
            for file in (directory / name).rglob("*")
            if file.is_file()
        }
        manifest = dataclasses.replace(a_manifest(), files=sizes, variants=(variant,))
        for spec in variant.graphs.values():
            data = (directory / name / spec.file).read_bytes()
            found.update(operators(read_model(data)["graph"]))
            check_graph(data, manifest, variant, spec)
    return found


def exported(name, directory):
    """The operators of one of our own models, of an encoder alone, or of an imported model."""
    if name in OWN:
        architecture, changes, schemes = OWN[name]
        return found_in(tiny_model(tiny_config(architecture, **{**ONE_LAYER, **changes})), schemes, directory)
    if name in ENCODERS:
        schemes = ("fp32", "fp16", "w8a8-dynamic", "w8a8-static", "w4-block32", "w4a16-block32")
        return found_in(tiny_encoder(name), schemes, directory)
    if name == "embedder":
        layers = tuple({"size": 5, "activation": kind} for kind in get_args(DenseActivation))
        return found_in(tiny_model(tiny_config("encoder", **{**EMBEDDER, "dense": layers})), FLOATS, directory)
    if name in BERTS:
        from tests.pretrained_encoder import saved, theirs_of  # transformers, which not every set-up has

        (directory / "theirs").mkdir()
        imported = import_model(saved(theirs_of(name, BERTS[name]), directory / "theirs"))
        model = build(imported.config)
        model.load_state_dict(imported.weights)
        return found_in(model.eval(), ("fp32", "w8a8-dynamic"), directory)
    from tests.decoders import make_decoder
    from tests.pretrained_seq2seq import make

    theirs = make_decoder(name) if name in DECODERS else make(name)
    theirs.save_pretrained(directory / "theirs")
    words = " ".join(f"w{number}" for number in range(4, theirs.config.vocab_size))
    tokenizer = Tokenizer.train([words], kind="words", vocab_size=theirs.config.vocab_size)
    import_checkpoint(directory / "theirs", directory / "ours", tokenizer)
    return found_in(load_checkpoint(directory / "ours").model, ("fp32", "w8a8-dynamic"), directory)


@pytest.fixture
def found_of(build_cache):
    """The operators of a model by its name, exported once in a run, whichever process comes first."""

    def found_of(name):
        def operators_of(directory):
            return exported(name, directory)

        return build_cache.once(operators_of, name)

    return found_of


@pytest.mark.parametrize("name", [*OWN, *ENCODERS, "embedder", *IMPORTED])
def test_graphs_of_every_export_keep_the_rules(name, found_of):
    if name in IMPORTED:
        pytest.importorskip("transformers")
    assert len(found_of(name)) > 10


def test_the_table_is_what_exports_contain_and_nothing_more(found_of):
    pytest.importorskip("transformers")
    used: dict[str, dict[str, dict[str, int]]] = {}
    for name in (*OWN, *ENCODERS, *IMPORTED):
        for domain, operator, attributes in found_of(name):
            used.setdefault(domain, {}).setdefault(operator, {}).update(attributes)
    assert used == {domain: {name: dict(kinds) for name, kinds in table.items()} for domain, table in OPERATORS.items()}
