"""Requests alone and in batches, in the smallest form."""

import argparse

import pytest

from bench.answers.invariance import invariance
from tests.tiny import pairs_file


@pytest.mark.slow
def test_answers_are_those_of_single_requests(tiny_translation_bundle, tmp_path, capsys):
    asked = argparse.Namespace(
        bundle=tiny_translation_bundle,
        data=pairs_file(tmp_path, times=6),
        precision="all",
        requests=12,
        mixes=1,
        json=False,
    )
    with pytest.raises(SystemExit) as end:
        invariance(asked)
    printed = capsys.readouterr().out
    assert end.value.code == 0, printed
    assert "answers of 12 requests" in printed
    assert "that differ between alone and in a batch: 0" in printed
