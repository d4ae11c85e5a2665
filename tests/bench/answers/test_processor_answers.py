"""Answers of two processors, as files."""

import argparse
import json

import pytest

from bench.answers.processor_answers import compare, processor_answers
from tests.tiny import pairs_file

FIRST = {
    "bundle": "a",
    "requests": [2, "embedded corpus"],
    "libraries": {"numpy": "2"},
    "answers": {"fp32": {"0 greedy": [[[4, 2], "0x1p-1"]], "1 greedy": [[[5, 2], "0x1p-2"]]}},
}


def test_bits_and_tokens_are_counted_apart():
    other = json.loads(json.dumps(FIRST))
    assert compare(FIRST, other) == {"fp32": {"answers": 2, "identical": 2, "tokens": 2}}
    other["answers"]["fp32"]["0 greedy"][0][1] = "0x1.1p-1"
    assert compare(FIRST, other) == {"fp32": {"answers": 2, "identical": 1, "tokens": 2}}
    other["answers"]["fp32"]["1 greedy"][0][0] = [6, 2]
    assert compare(FIRST, other) == {"fp32": {"answers": 2, "identical": 0, "tokens": 1}}


def test_answers_of_another_bundle_are_refused():
    with pytest.raises(SystemExit, match="the files must have the same bundle, got a and b"):
        compare(FIRST, {**FIRST, "bundle": "b"})


@pytest.mark.slow
def test_a_processor_answers_as_itself(tiny_translation_bundle, tmp_path, capsys):
    data = pairs_file(tmp_path, times=3)
    files = [tmp_path / name for name in ("first", "second")]
    asked = {"bundle": tiny_translation_bundle, "data": data, "requests": 12, "name": "", "compare": [], "json": False}
    for file in files:
        processor_answers(argparse.Namespace(**asked, write=file))
    with pytest.raises(SystemExit) as end:
        processor_answers(argparse.Namespace(**{**asked, "compare": files}, write=None))
    printed = capsys.readouterr().out
    assert end.value.code == 0, printed
    assert "12 of 12 bit-identical, 12 with equal tokens" in printed
