"""The table of operators: what exports of every architecture, mechanism, scheme and family contain, and nothing more.

Graphs are saved without the verification that a bundle gets, and every rule for graphs is checked on their files.
"""

import copy
import dataclasses
from typing import Any

import pytest

from export.graph_rules import OPERATORS, check_graph
from export.manifest import FileDigest
from export.onnx_reader import read_model
from export.options import int8_cache_problem
from export.passes.calibrate import calibrate
from export.passes.quantization_scheme import SCHEMES
from export.variants import save_variant, trace_model
from model.checkpoint import load_checkpoint
from model.pretrained.import_checkpoint import import_checkpoint
from model.tokenizer import Tokenizer
from tests.export.manifests import a_manifest
from tests.tiny import ENCODERS, tiny_config, tiny_encoder, tiny_model

pytestmark = pytest.mark.slow

ALL = tuple(SCHEMES)
FLOATS = ("fp32", "fp16")
PLAIN = ("fp32",)
ONE_LAYER = {"num_encoder_layers": 1, "num_decoder_layers": 1}
TWO_LAYERS = {"num_decoder_layers": 2}
OWN: dict[str, tuple[Any, dict[str, Any], tuple[str, ...]]] = {  # name: architecture, mechanisms, schemes
    "translation": ("encoder_decoder", {}, ALL),
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
DECODERS = ("gpt2", "llama3", "mistral", "qwen2", "qwen3", "gemma", "phi", "phi3")
SEQ2SEQ = ("marian", "bart", "mbart", "m2m_100", "t5", "t5-1.1", "mt5")
IMPORTED = [*DECODERS, *SEQ2SEQ]
found: set[tuple[str, str, frozenset[tuple[str, int]]]] = set()
taken: set[str] = set()  # models whose graphs are among them


def operators(graph):
    """Every node of a graph and of those inside of it: domain, operator, attributes with their types."""
    for node in graph["node"]:
        attributes = node.get("attribute", [])
        names = frozenset((attribute["name"], attribute["type"]) for attribute in attributes)
        yield node.get("domain", ""), node["op_type"], names
        for attribute in attributes:
            if "graph" in attribute:
                yield from operators(attribute["graph"])


def take(model, schemes, tmp_path):
    """Saves a model's graphs in each scheme, checks them, and remembers their operators."""
    config = model.config
    attention = not config.is_recurrent or config.score != "none"
    shortlist = config.has_encoder and config.has_decoder
    traced = trace_model(model, attention=attention, shortlist=shortlist)
    ranges = None
    for name in schemes:
        scheme = SCHEMES[name]
        if scheme.has_int8_cache and int8_cache_problem(config):
            continue
        if scheme.needs_ranges and ranges is None:
            ranges = calibrate(model, [([5, 2] if config.has_encoder else [], [1, 5] if config.has_decoder else [])])
        source = traced
        if name == "fp16":
            source = trace_model(copy.deepcopy(model).half(), attention=attention, shortlist=shortlist)
        directory = tmp_path / name
        variant = save_variant(source, directory, scheme, ranges=ranges)
        sizes = {
            str(file.relative_to(directory)): FileDigest(sha256="0" * 64, bytes=file.stat().st_size)
            for file in directory.rglob("*")
            if file.is_file()
        }
        manifest = dataclasses.replace(a_manifest(), files=sizes, variants=(variant,))
        for spec in variant.graphs.values():
            data = (directory / spec.file).read_bytes()
            found.update(operators(read_model(data)["graph"]))
            check_graph(data, manifest, variant, spec)


@pytest.mark.parametrize("name", OWN)
def test_graphs_of_our_own_models_keep_the_rules(name, tmp_path):
    architecture, changes, schemes = OWN[name]
    take(tiny_model(tiny_config(architecture, **{**ONE_LAYER, **changes})), schemes, tmp_path)
    taken.add(name)


@pytest.mark.parametrize("kind", ENCODERS)
def test_graphs_of_encoders_keep_the_rules(kind, tmp_path):
    take(tiny_encoder(kind), ("fp32", "fp16", "w8a8-dynamic", "w8a8-static", "w4-block32"), tmp_path)
    taken.add(kind)


@pytest.mark.parametrize("name", IMPORTED)
def test_graphs_of_imported_models_keep_the_rules(name, tmp_path):
    pytest.importorskip("transformers")
    from tests.decoders import make_decoder
    from tests.pretrained_seq2seq import make

    theirs = make_decoder(name) if name in DECODERS else make(name)
    theirs.save_pretrained(tmp_path / "theirs")
    words = " ".join(f"w{number}" for number in range(4, theirs.config.vocab_size))
    tokenizer = Tokenizer.train([words], kind="words", vocab_size=theirs.config.vocab_size)
    import_checkpoint(tmp_path / "theirs", tmp_path / "ours", tokenizer)
    take(load_checkpoint(tmp_path / "ours").model, ("fp32", "w8a8-dynamic"), tmp_path)
    taken.add(name)


def test_the_table_has_nothing_more():
    """Run after the others of this module: they collect what exports contain."""
    if taken != {*OWN, *ENCODERS, *IMPORTED}:
        pytest.skip("not all other tests of this module ran in this process")
    used: dict[str, dict[str, dict[str, int]]] = {}
    for domain, name, attributes in found:
        used.setdefault(domain, {}).setdefault(name, {}).update(attributes)
    assert used == {domain: {name: dict(kinds) for name, kinds in table.items()} for domain, table in OPERATORS.items()}
