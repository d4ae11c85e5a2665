"""Every field of a manifest: its type and its range, by the annotations that the parser enforces."""

import copy
from typing import Any, get_origin

import pytest

from export.bundle.manifest_fields import MAX_DEPTH, MAX_INT, MAX_TEXT, Items, Range, SchemaError, Text
from export.bundle.manifest_parser import parse_json, parse_manifest
from tests.export.bundle.manifest_leaves import LEAVES, SCALARS, TEXT, name_of, the_manifest, with_value

NULLABLE = {"exact_match", "quantization", "bleu", "bleu_loss", "nats_per_token", "nats_loss", "equal_tokens"}
"""Fields that may be null."""
NUMBERS = [True, 1, -1, 2**40, 2**63, 10**400, 1.5, -0.5, 1e300]
WRONG = [*NUMBERS, None, "", "x\0y", "\ud800", "a" * 100_000, [], [1], {}, {"a": 1}]


def allows(kind, bounds, value):
    """What the annotation says, without the parser."""
    if type(value) is not kind:
        return False
    for bound in bounds:
        match bound:
            case Range(least, most) if not least <= value <= most:
                return False
            case Text(pattern) if not pattern.fullmatch(value):
                return False
    return True


def test_every_number_and_text_has_a_range():
    unbounded = [name_of(path) for path, kind, bounds in SCALARS if kind is not bool and not bounds]
    assert unbounded == []
    assert len({path[-1] for path, _, _ in SCALARS}) > 35


def test_every_list_and_object_has_a_limit_or_keys_of_few_values():
    lists = [(path, bounds) for path, kind, bounds in LEAVES if get_origin(kind) is tuple]
    assert [name_of(path) for path, bounds in lists if not any(isinstance(bound, Items) for bound in bounds)] == []


@pytest.mark.parametrize(("path", "kind", "bounds"), SCALARS, ids=[name_of(path) for path, _, _ in SCALARS])
def test_a_value_outside_of_the_range_of_its_field_is_refused(path, kind, bounds):
    tried = 0
    for value in WRONG:
        optional = value is None and with_value(path, None) is not None and path[-1] in NULLABLE
        if allows(kind, bounds, value) or optional or (kind is int and path[-2:-1] == ("shape",)):
            continue
        tried += 1
        with pytest.raises(SchemaError):
            parse_manifest(with_value(path, value))
    assert tried > 10 or "shape" in path


@pytest.mark.parametrize("value", [-1, 0, 2**40, True, 1.5, "", "\ud800", None, []])
def test_a_size_of_a_state_outside_of_its_range_is_refused(value):
    with pytest.raises(SchemaError, match=r"variants\[0\].states\[0\].shape\[1\] must be (int|str|list)? ?of 1|, got"):
        parse_manifest(with_value(("variants", 0, "states", 0, "shape", 1), value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("lineage", "metrics"), "none"),
        (("lineage", "metrics"), [1]),
        (("lineage", "metrics"), {"steps": "x"}),
        (("lineage", "metrics"), {"steps": 2**70}),
        (("lineage", "metrics"), {"steps": True}),
        (("lineage", "metrics"), {"steps": 1.0}),
        (("lineage", "data_sha256"), 3),
        (("lineage", "git_commit"), "\ud800"),
        (("lineage", "git_commit"), ["a"]),
        (("lineage", "anything"), "\udfff"),
        (("lineage", "anything"), {"\ud800": 1}),
        (("lineage", "anything"), 2**63 + 1),
        (("lineage", "anything"), "a" * (MAX_TEXT + 1)),
        (("parity", "checks", 0, "name"), 3),
        (("parity", "checks", 0, "name"), None),
        (("parity", "checks", 0, "max_error"), "0"),
        (("parity", "checks", 0, "tolerance"), -1.0),
        (("parity", "checks", 0), "passed"),
        (("parity", "checks"), "passed"),
        (("parity", "passed"), 1),
    ],
)
def test_what_messages_take_from_free_values_has_its_type(path, value):
    with pytest.raises(SchemaError, match=path[0]):
        parse_manifest(with_value(path, value))


def test_free_values_may_be_anything_else():
    values = {"text": "ä" * 1000, "number": -MAX_INT, "none": None, "list": [1, [2.5, {"a": False}]]}
    assert parse_manifest(with_value(("lineage", "anything"), values)).lineage["anything"] == values


def test_deeply_nested_values_are_refused():
    nested: Any = 1
    for _ in range(MAX_DEPTH + 2):
        nested = [nested]
    with pytest.raises(SchemaError, match=f"must be nested at most {MAX_DEPTH} deep"):
        parse_manifest(with_value(("lineage", "anything"), nested))


@pytest.mark.parametrize(
    "data",
    [
        TEXT.encode("utf-16"),
        TEXT.encode("utf-16-le"),
        TEXT.encode("utf-32-be"),
        b"\xef\xbb\xbf" + TEXT.encode(),
        b'{"a": "\xff"}',
        b'{"a": Infinity}',
        b'{"a": 1e999}',
        b'{"a": -1e999}',
        b'{"a": 1, "a": 1}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a": ' + b"[" * 100_000,
    ],
    ids=["utf-16", "utf-16-le", "utf-32", "mark", "latin", "infinity", "large", "small", "twice", "digits", "nested"],
)
def test_json_of_another_form_is_refused(data):
    with pytest.raises(SchemaError, match="is not JSON"):
        parse_json(data)


RELATIONS: list[tuple[tuple[Any, ...], Any, str]] = [
    (("limits", "max_block"), 0, "limits.max_block must be 1 for the architecture encoder_decoder"),
    (
        ("architecture",),
        "state_space",
        "architecture must be 'encoder_decoder' or 'decoder' or 'encoder' or 'recurrent'",
    ),
    (("limits", "max_source_len"), 0, "limits.max_source_len must be at least 1 for the task translation"),
    (("limits", "max_source_len"), 3, "golden.source must have at most 3 tokens"),
    (("limits", "max_target_len"), 1, "golden must have at most 2 tokens of prompt and output"),
    (("limits", "vocab_size"), 20, r"tokens and golden must hold ids of 0..19, got \d+"),
    (("alignment", "heads"), 4, "alignment must have the layers and heads of attention_maps"),
    (("attention_maps", 1, "heads"), 3, "must have a number of heads that divides 3"),
    (
        ("variants", 0, "states", 0, "shape"),
        [1, 2, "capacity", 8],
        "the shape of a batch with 1 growing axes",
    ),
    (("variants", 0, "states", 0, "shape"), ["batch", "a", "b"], "the shape of a batch with 1 growing axes"),
    (("variants", 0, "states", 0, "shape"), ["batch", 2**20, "capacity", 2**20], "at most 268435456 items for each"),
    (("variants", 0, "graphs", "encode", "inputs"), ["source", "source"], "encode must name each input and each outp"),
    (("variants", 0, "graphs", "encode", "file"), "tokenizer.json", "must be in files that end in .onnx"),
    (("variants", 1, "precision"), "fp32", "variants must each have a precision of their own"),
]


@pytest.mark.parametrize(("path", "value", "message"), RELATIONS, ids=[name_of(path) for path, _, _ in RELATIONS])
def test_fields_that_contradict_each_other_are_refused(path, value, message):
    with pytest.raises(SchemaError, match=message):
        parse_manifest(with_value(path, value))


def test_states_of_the_same_name_are_refused():
    manifest = the_manifest()
    states = manifest["variants"][0]["states"]
    states.append(copy.deepcopy(states[0]))
    with pytest.raises(SchemaError, match="states must each have a name of their own"):
        parse_manifest(manifest)


def test_the_kept_manifest_itself_is_read():
    assert parse_manifest(the_manifest()).task == "translation"
