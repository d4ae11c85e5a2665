"""Quantized graphs of small models, for the tests of the passes that make them."""

import copy
from functools import cache

from onnx import ModelProto

from export.passes.calibrate import calibrate
from export.passes.quantization_scheme import SCHEMES
from export.passes.quantize import quantize
from export.variants import trace_model
from tests.tiny import tiny_config, tiny_model

SOURCES = [(5, 6, 7, 2), (6, 2), (9, 8, 7, 6, 5, 2), (4, 4, 4, 2)]


TARGETS = [(1, 8, 9, 5), (1, 4, 5, 6), (1, 5, 5, 8), (1, 9, 8, 7)]


QUANTIZED = [name for name, scheme in SCHEMES.items() if scheme.is_quantized]


ROTARY = {"positions": "rotary", "num_heads": 2}


SHAPES = {
    "encoder_decoder": {},
    "encoder_decoder rotary": ROTARY,
    "encoder_decoder bucketed": {"positions": "bucketed", "position_buckets": 4, "position_range": 5},
    "decoder": ROTARY,
    "decoder rms": {**ROTARY, "norm": "rms", "bias": False},
}


@cache
def prepared(architecture):
    model = tiny_model(tiny_config(architecture.partition(" ")[0], **SHAPES[architecture]))
    has_encoder = model.config.has_encoder
    pairs = [(source if has_encoder else (), target) for source, target in zip(SOURCES, TARGETS, strict=True)]
    return model, trace_model(model, attention=has_encoder), calibrate(model, pairs)


@cache
def traced_for(architecture, *, is_half, attention=False):
    """The graphs that a scheme rounds: of the float32 model, or of the same model in float16. attention: also those
    that return weights; they take long to trace."""
    model, traced, _ = prepared(architecture)
    if not is_half:
        return traced
    return trace_model(copy.deepcopy(model).half(), attention=attention)


@cache
def graph(architecture, role, scheme):
    _, _, ranges = prepared(architecture)
    found = ModelProto()
    traced = traced_for(architecture, is_half=SCHEMES[scheme].is_half, attention=role == "align")
    found.CopyFrom(traced.graphs[role])
    return quantize(found, role, SCHEMES[scheme], ranges)


def operators(model):
    return [node.op_type for node in model.graph.node]
