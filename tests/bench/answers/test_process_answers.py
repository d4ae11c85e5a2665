"""Which answers of engine processes count as those of the same engines in this process."""

import argparse

import numpy as np
import pytest

from bench.answers.process_answers import exact, process_answers
from service.progress import Timings
from service.request import Finished, FinishReason, HypothesisResult
from tests.tiny import TEXTS


def answer(score=0.5, logprobs=(float("nan"), -0.25), attention=None, timings=None):
    hypothesis = HypothesisResult("a", (4, 2), FinishReason.LENGTH, score, -1.0, logprobs, attention=attention)
    return Finished(FinishReason.LENGTH, "a", (4, 2), hypotheses=(hypothesis,), timings=timings or Timings())


def test_times_do_not_count_and_nan_equals_itself():
    assert exact(answer(timings=Timings(total_s=1.0))) == exact(answer(timings=Timings(total_s=2.0)))
    assert exact(answer(attention=np.ones((1, 2), np.float32))) == exact(answer(attention=np.ones((1, 2), np.float32)))


@pytest.mark.parametrize(
    "other",
    [
        answer(score=np.nextafter(0.5, 1)),
        answer(logprobs=(float("nan"), -0.25, 0.0)),
        answer(logprobs=(0.0, -0.25)),
        answer(attention=np.ones((2, 1), np.float32)),
        answer(attention=np.ones((1, 2), np.float64)),
        answer(attention=np.nextafter(np.ones((1, 2), np.float32), np.float32(2))),
    ],
    ids=["last bit", "one more", "a number for NaN", "shape", "type", "last bit of an array"],
)
def test_any_other_difference_counts(other):
    assert exact(other) != exact(answer(attention=np.ones((1, 2), np.float32)))
    assert exact(other) != exact(answer())


@pytest.mark.slow
def test_processes_answer_like_engines_in_this_process(tiny_attention_bundle, tmp_path, capsys):
    data = tmp_path / "pairs.tsv"
    data.write_text("".join(f"{text}\t{text}\n" for text in TEXTS))
    asked = argparse.Namespace(
        bundle=tiny_attention_bundle, data=data, requests=30, engines=2, precision="auto", max_tokens=8, json=False
    )
    with pytest.raises(SystemExit) as end:
        process_answers(asked)
    printed = capsys.readouterr().out
    assert end.value.code == 0, printed
    assert "met  answers of 30 that differ: 0" in printed
    assert "attention" in printed
