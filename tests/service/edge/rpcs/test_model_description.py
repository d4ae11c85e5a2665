import dataclasses

import pytest

from export.bundle.manifest import Quantization, SchemeMeasurement, Variant
from export.bundle.manifest_fields import Range, SchemaError
from export.bundle.manifest_parser import parse_manifest
from glossa.v1 import glossa_pb2 as pb
from service.edge.requests.request_limits import TextLimits
from service.edge.rpcs.model_description import describe
from tests.edge import TRANSLATION as MODEL
from tests.edge import manifest
from tests.export.bundle.manifest_leaves import SCALARS, name_of, with_value


def figures(scheme, **changes):
    unmeasured = dict.fromkeys(("exact_match", "bleu", "bleu_loss", "nats_per_token", "nats_loss", "equal_tokens"))
    fields = {
        "scheme": scheme,
        "evaluation_samples": 500,
        **unmeasured,
        "tokens_per_s": 900.0,
        "single_stream_tokens_per_s": 90.0,
    }
    return SchemeMeasurement(**{**fields, "chosen": False, **changes})


def described(precision, *, is_batch_invariant=True, **changes):
    """The description of a model with fp32 and int8 graphs, of which it runs those of `precision`."""
    quantization = Quantization(
        scheme="w8a8-static-kv8",
        weight_bits=8,
        block_size=0,
        activations="static",
        kv_cache="int8",
        batch_invariant=True,
    )
    variants = (
        Variant(precision="fp32", graphs={}, states=()),
        Variant(precision="int8", graphs={}, states=(), **{"quantization": quantization, **changes}),
    )
    model = dataclasses.replace(
        MODEL,
        manifest=manifest(variants=variants),
        choice=dataclasses.replace(MODEL.choice, precision=precision),
        is_batch_invariant=is_batch_invariant,
    )
    return describe(model, TextLimits())


@pytest.mark.parametrize("is_batch_invariant", [True, False])
def test_batch_invariance_is_that_of_this_machine(is_batch_invariant):
    assert described("int8", is_batch_invariant=is_batch_invariant).quantization.batch_invariant == is_batch_invariant


def test_a_quantized_model_has_its_scheme_and_measured_loss():
    comparison = (
        figures("w8a8-dynamic", exact_match=0.95, bleu_loss=0.0),
        figures("w8a8-static-kv8", exact_match=0.875, bleu=35.0, bleu_loss=-0.125, chosen=True),
    )
    quantization = described("int8", comparison=comparison).quantization
    assert quantization == pb.Quantization(
        scheme="w8a8-static-kv8",
        weight_bits=8,
        activations="static",
        kv_cache="int8",
        batch_invariant=True,
        evaluation_samples=500,
        bleu_loss=-0.125,
        exact_match=0.875,
    )
    assert not quantization.HasField("nats_loss")


def test_a_quantized_model_without_measurement_has_none():
    quantization = described("int8").quantization
    assert (quantization.scheme, quantization.evaluation_samples) == ("w8a8-static-kv8", 0)
    assert not quantization.HasField("exact_match")


def test_the_number_of_draft_tokens_is_described():
    assert described("fp32").draft_tokens == 0
    assert describe(dataclasses.replace(MODEL, draft_tokens=6), TextLimits()).draft_tokens == 6


def test_an_fp32_model_has_no_quantization():
    assert not described("fp32").HasField("quantization")


def ends(kind, bounds):
    """The ends of what a field may have."""
    for bound in bounds:
        if isinstance(bound, Range):
            yield from (kind(bound.least), kind(bound.most))
    if kind is str:
        yield from ("", "\U0001f600" * 100, "a" * 1000)
    if kind is bool:
        yield from (False, True)


@pytest.mark.parametrize(("path", "kind", "bounds"), SCALARS, ids=[name_of(path) for path, _, _ in SCALARS])
def test_every_manifest_that_a_server_accepts_is_described(path, kind, bounds):
    for value in ends(kind, bounds):
        try:
            read = parse_manifest(with_value(path, value))
        except SchemaError:
            continue
        for variant in read.variants:
            choice = dataclasses.replace(MODEL.choice, precision=variant.precision)
            message = describe(dataclasses.replace(MODEL, manifest=read, choice=choice), TextLimits())
            assert pb.Model.FromString(message.SerializeToString()) == message


@pytest.mark.parametrize("value", [2**63, -(2**63), "\U0001f600" * 100, None, [], {"steps": 2**63}, 1e300, -0.0])
@pytest.mark.parametrize(
    "path",
    [
        *[("lineage", name) for name in ("metrics", "data_sha256", "git_commit", "anything")],
        *[("parity", "checks", 0, name) for name in ("name", "max_error", "tolerance")],
    ],
    ids=name_of,
)
def test_what_describes_a_model_is_checked_before(path, value):
    try:
        read = parse_manifest(with_value(path, value))
    except SchemaError:
        return
    message = describe(dataclasses.replace(MODEL, manifest=read), TextLimits())
    assert pb.Model.FromString(message.SerializeToString()) == message
