"""Calibrations in a manifest: read back as written, and damaged numbers refused with their place."""

import dataclasses
import json
import re

import pytest

from export.bundle.manifest_fields import SchemaError
from export.bundle.manifest_parser import parse_json, parse_manifest
from export.bundle.manifest_relations import _calibrations
from tests.calibrated import CALIBRATION, WITH_ADEQUACY
from tests.export.bundle.manifest_leaves import the_manifest
from tests.export.bundle.manifests import a_manifest


def test_a_calibration_is_read_back():
    assert parse_manifest(the_manifest()).calibrations == {"fp32": WITH_ADEQUACY}
    plain = the_manifest()
    plain["calibrations"]["fp32"]["adequacy"] = None
    assert parse_manifest(plain).calibrations == {"fp32": CALIBRATION}


MAP = {"method": "isotonic", "temperature": 1.0, "raw": [0.2, 0.4], "calibrated": [0.1, 0.9]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"calibrated": [0.9, 0.1]}, "map must have calibrated knots that do not descend"),
        ({"raw": [0.4, 0.2]}, "map must have ascending raw knots"),
        ({"raw": [0.4, 0.4]}, "map must have ascending raw knots"),
        ({"raw": [0.4]}, "map must have as many raw as calibrated knots, got 1 and 2"),
        ({"raw": [], "calibrated": []}, "map must have as many raw as calibrated knots, got 0 and 0"),
        ({"raw": [0.2, 1.5]}, "map.raw[1] must be float of 0..1, got 1.5"),
        ({"calibrated": [-0.1, 0.5]}, "map.calibrated[0] must be float of 0..1, got -0.1"),
        ({"calibrated": [float("nan"), 0.5]}, "map.calibrated[0] must be float of 0..1, got nan"),
        ({"calibrated": [0, 1]}, "map.calibrated[0] must be float of 0..1, got 0"),
        ({"raw": [0.01 * place for place in range(33)]}, "map.raw must be a list with 0..32 items"),
        ({"temperature": 0.0}, "map.temperature must be float of 0.01..100, got 0.0"),
        ({"method": "temperature"}, "map must have no knots for the method temperature"),
        ({"method": "logistic"}, "map.method must be 'temperature' or 'isotonic', got 'logistic'"),
    ],
)
@pytest.mark.parametrize("place", ["words", "sentences"])
def test_numbers_that_are_no_monotone_map_are_refused(place, change, message):
    manifest = the_manifest()
    manifest["calibrations"]["fp32"][place]["map"] = MAP | change
    with pytest.raises(SchemaError, match=re.escape(f"calibrations.fp32.{place}.{message}")):
        parse_manifest(manifest)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"length_deviation": 0.0}, "length_deviation must be float of 0.01..1000000.0, got 0.0"),
        ({"log_tokens_deviation": -0.1}, "log_tokens_deviation must be float of 0.01..20, got -0.1"),
        ({"length_slope": -1.0}, "length_slope must be float of 0..1000.0, got -1.0"),
        ({"missing": -0.5}, "missing must be float of 0..10000.0, got -0.5"),
        ({"repetition": float("inf")}, "repetition must be float of 0..10000.0, got inf"),
        ({"open_end": 1e5}, "open_end must be float of 0..10000.0, got 100000.0"),
        ({"foreign": "1"}, "foreign must be float of 0..10000.0, got '1'"),
        ({"intercept": float("nan")}, "intercept must be float of -100..100, got nan"),
        ({"copied": 1.0}, "copied is an unknown key"),
    ],
)
def test_numbers_that_are_no_adequacy_are_refused(change, message):
    manifest = the_manifest()
    manifest["calibrations"]["fp32"]["adequacy"] |= change
    with pytest.raises(SchemaError, match=re.escape(f"calibrations.fp32.adequacy.{message}")):
        parse_manifest(manifest)


def test_not_a_number_is_refused_as_json():
    manifest = the_manifest()
    manifest["calibrations"]["fp32"]["words"]["ece_after"] = float("nan")
    with pytest.raises(SchemaError, match="NaN is not a JSON number"):
        parse_json(json.dumps(manifest).encode())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fp64": dataclasses.asdict(CALIBRATION)}, "calibrations.fp64 must be of a variant: fp32, int8"),
        ({"fp32": None}, "calibrations.fp32 must be an object, got None"),
        ({"fp32": {}}, "calibrations.fp32.data is missing"),
    ],
)
def test_a_calibration_of_something_else_is_refused(change, message):
    manifest = the_manifest()
    manifest["calibrations"] = json.loads(json.dumps(change))
    with pytest.raises(SchemaError, match=re.escape(message)):
        parse_manifest(manifest)


def test_only_translations_are_calibrated():
    manifest = a_manifest(calibrations={"fp32": CALIBRATION})
    assert list(_calibrations(manifest)) == []
    problems = list(_calibrations(dataclasses.replace(manifest, task="generation")))
    assert problems == ["calibrations must be empty for the task generation"]
