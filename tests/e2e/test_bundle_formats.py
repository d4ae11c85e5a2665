"""Kept bundles of each format that a server promises to read: loaded, verified by digest, and served with the answers
that the release which made them gave. `tests/bundles/make.py` makes them."""

import json
from pathlib import Path

import pytest

from export.bundle.directory import load_bundle
from export.bundle.manifest import FORMAT_VERSION, MANIFEST
from export.bundle.manifest_migration import MIGRATIONS
from export.verification.verifier import verify_bundle
from glossa.client import Client
from tests.bundles.make import answers
from tests.e2e.process import serving

KEPT = Path(__file__).parents[1] / "bundles"
FORMATS = sorted(int(path.name.removeprefix("format-")) for path in KEPT.glob("format-*"))


def kept(version):
    return KEPT / f"format-{version}" / "bundle"


def test_a_bundle_of_every_format_is_kept():
    assert [*MIGRATIONS, FORMAT_VERSION] == FORMATS


@pytest.mark.parametrize("version", FORMATS)
def test_a_kept_bundle_is_of_its_format_and_small(version):
    assert json.loads((kept(version) / MANIFEST).read_text())["format_version"] == version
    assert sum(file.stat().st_size for file in kept(version).rglob("*") if file.is_file()) < 256 << 10


@pytest.mark.parametrize("version", FORMATS)
def test_a_kept_bundle_is_whole_and_repeats_its_golden_answer(version):
    manifest = load_bundle(kept(version))
    assert manifest.format_version == FORMAT_VERSION
    roles = {"encode", "decode", "logprobs", "align", "attend", "project_shortlist", "shortlist_logprobs"}
    assert all(set(variant.graphs) == roles for variant in manifest.variants)
    quantization = manifest.variant("int8").quantization
    assert quantization is not None
    assert (quantization.scheme, quantization.activations) == ("w8a8-dynamic-kv8", "dynamic")
    assert [measured.scheme for measured in manifest.variant("int8").comparison] == ["fp32", "w8a8-dynamic-kv8"]
    assert verify_bundle(kept(version))["passed"]


def scores(found):
    """The scores of all beams, removed from `found`."""
    return [hypothesis.pop("score") for answer in found for hypothesis in answer["beam"]]


def confidences(found):
    """The confidences of all greedy answers and their words, removed from `found`; [] if it has none."""
    return [answer.pop("confidence") for answer in found if "confidence" in answer]


@pytest.mark.parametrize("precision", [pytest.param("fp32", marks=pytest.mark.slow), "int8"])
def test_kept_bundles_are_served_with_their_recorded_answers(precision):
    models = {f"format-{version}": str(kept(version)) for version in FORMATS}
    with serving(models=models, precision=precision) as server, Client(server.address) as client:
        for name in models:
            recorded = json.loads((KEPT / name / "answers.json").read_text())[precision]
            found = answers(client, name, is_calibrated="confidence" in recorded[0])
            assert confidences(found) == [pytest.approx(one, rel=1e-5) for one in confidences(recorded)], name
            # Tokens are the same on every processor; sums in float32 differ between processors by some 1e-8.
            assert scores(found) == pytest.approx(scores(recorded), rel=1e-6), name
            assert found == recorded, name
