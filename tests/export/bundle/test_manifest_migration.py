"""Manifests of earlier formats become those of the current one, and what is not recognised stays for the parser."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from export.bundle.manifest import FORMAT_VERSION
from export.bundle.manifest_fields import SchemaError
from export.bundle.manifest_migration import MIGRATIONS, SCHEMES_OF_8, from_8, from_11, migrated
from export.bundle.manifest_parser import parse_manifest
from export.passes.quantization_scheme import SCHEMES

KEPT = Path(__file__).parents[2] / "bundles"


def manifest_of_8():
    return json.loads((KEPT / "format-8" / "bundle" / "manifest.json").read_text())


# What every migration adds: nobody knows the languages of an older bundle.
NEW = {"format_version": FORMAT_VERSION, "source_language": "", "target_language": ""}


def test_a_manifest_of_format_8_is_one_of_today():
    old = manifest_of_8()
    before = copy.deepcopy(old)
    new = migrated(old, 8)
    assert old == before, "a migration must not change its argument"
    manifest = parse_manifest(new)
    assert manifest.format_version == FORMAT_VERSION == 16
    assert (manifest.calibrations, manifest.context, manifest.source_unit) == ({}, None, "text")
    assert manifest.template.source_suffix == tuple(old["framing"]["after_source"])
    assert manifest.template.target_prefix == tuple(old["framing"]["before_target"])
    assert manifest.alignment is not None
    assert manifest.alignment.layers == old["attention"]["layers"]
    assert [maps.kind for maps in manifest.attention_maps] == [maps["kind"] for maps in old["seen"]]
    assert {state.kind for state in manifest.variant("int8").states} == {"self_kv", "cross_kv", "shortlist"}
    figures = manifest.variant("int8").comparison[1]
    assert figures.single_stream_tokens_per_s == old["variants"][1]["comparison"][1]["tokens_per_s_alone"]
    assert figures.evaluation_samples == old["variants"][1]["comparison"][1]["sentences"]


def test_files_and_tensors_keep_their_names():
    old, new = manifest_of_8(), from_8(manifest_of_8())
    assert new["files"] == old["files"]
    for before, after in zip(old["variants"], new["variants"], strict=True):
        graphs = zip(before["graphs"].values(), after["graphs"].values(), strict=True)
        assert all(
            {**one, "role": ""} == {**other, "role": ""} and after["graphs"][other["role"]] == other
            for one, other in graphs
        )


def test_every_scheme_of_format_8_is_one_of_today():
    assert len(set(SCHEMES_OF_8.values())) == len(SCHEMES_OF_8) == 7
    assert set(SCHEMES_OF_8.values()) <= {name for name, scheme in SCHEMES.items() if scheme.is_quantized}


def test_a_chain_of_migrations_ends_at_the_current_format():
    for version in MIGRATIONS:
        new: dict[str, Any] = dict(NEW)
        new |= {"source_unit": "text"} if version < 12 else {}
        new |= {"calibrations": {}, "context": None} if version < 11 else {}
        assert migrated({"format_version": version}, version) == new


def test_vectors_of_format_11_are_means():
    assert from_11({"format_version": 11, "encoding": {"width": 8}})["encoding"] == {
        "width": 8,
        "pooling": "mean",
        "normalized": False,
    }
    assert migrated({"format_version": 11, "encoding": None}, 11)["encoding"] is None


def test_vectors_of_format_12_are_pooled_alone_and_have_no_prompts():
    old = {"format_version": 12, "encoding": {"width": 8, "pooling": "cls"}}
    before = copy.deepcopy(old)
    assert migrated(old, 12)["encoding"] == {
        "width": 8,
        "pooling": "cls",
        "dense_width": 0,
        "prompts": {},
        "default_prompt": "",
        "pools_prompt": True,
    }
    assert old == before, "a migration must not change its argument"


def test_calibrations_of_format_11_have_no_adequacy():
    old = {"format_version": 11, "calibrations": {"fp32": {"data": "dev.tsv"}, "int8": 3}}
    before = copy.deepcopy(old)
    new = migrated(old, 11)
    assert old == before, "a migration must not change its argument"
    assert new["calibrations"] == {"fp32": {"data": "dev.tsv", "adequacy": None}, "int8": 3}
    assert migrated({"format_version": 11, "calibrations": []}, 11)["calibrations"] == []


def test_caches_of_format_13_hold_all_positions():
    old = {"format_version": 13, "variants": [{"states": [{"name": "self_key.0", "stride": 1}, 3]}, {"states": 4}, 5]}
    before = copy.deepcopy(old)
    states = [{"name": "self_key.0", "stride": 1, "window": 0}, 3]
    assert migrated(old, 13) == {**NEW, "variants": [{"states": states}, {"states": 4}, 5]}
    assert old == before, "a migration must not change its argument"


def test_sources_and_targets_of_format_14_have_one_vocabulary():
    old = {"format_version": 14, "limits": {"vocab_size": 9}}
    before = copy.deepcopy(old)
    assert migrated(old, 14) == {**NEW, "limits": {"source_vocab_size": 0, "vocab_size": 9}}
    assert migrated({"format_version": 14, "limits": 3}, 14)["limits"] == 3
    assert old == before, "a migration must not change its argument"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda m: m.pop("framing"), "template is missing"),
        (lambda m: m.update(template={}), "framing is an unknown key"),
        (lambda m: m.update(framing=[]), "template must be an object, got"),
        (lambda m: m.update(tokens=None), "tokens must be an object, got None"),
        (lambda m: m.update(variants=[3]), r"variants\[0\] must be an object, got 3"),
        (lambda m: m["variants"][0]["graphs"].pop("rank"), "graphs must be exactly"),
        (lambda m: m["variants"][0]["graphs"].update(logprobs={}), "logprobs.role is missing"),
        (lambda m: m["variants"][1]["quantization"].update(form=[]), "scheme must be str"),
        (lambda m: m["variants"][1]["quantization"].update(activations="column"), "activations must be"),
    ],
)
def test_a_damaged_manifest_of_format_8_is_refused_like_any_other(change, problem):
    manifest = manifest_of_8()
    change(manifest)
    with pytest.raises(SchemaError, match=problem):
        parse_manifest(migrated(manifest, 8))
