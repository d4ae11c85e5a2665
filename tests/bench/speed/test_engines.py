"""Engines of measurements: answers in the order of the requests, and errors as exceptions."""

import pytest

from bench.speed.engines import Engines
from export.bundle.directory import load_bundle
from export.bundle.manifest import TOKENIZER
from model.tokenizer import Tokenizer
from service.errors import InternalFailure
from service.request import Request
from service.runtime.onnx_model import OnnxModel


@pytest.fixture(scope="module")
def engines(tiny_translation_bundle):
    model = OnnxModel.open(tiny_translation_bundle, load_bundle(tiny_translation_bundle), device="cpu")
    with Engines([model.runner(max_rows=2)], Tokenizer.load(tiny_translation_bundle / TOKENIZER)) as engines:
        yield engines


@pytest.mark.parametrize("singly", [True, False])
def test_answers_have_the_order_of_their_requests(engines, singly):
    lengths = [3, 1, 2, 1]
    requests = [
        Request(request_id=str(place), source=(5, 6, 2), prompt=(1,), max_tokens=length, is_streamed=bool(place % 2))
        for place, length in enumerate(lengths)
    ]
    answers = engines.answer(requests, singly=singly)
    assert [answer.generated_tokens for answer in answers] == lengths
    assert engines.seconds > 0


def test_a_failed_request_is_raised(engines):
    with pytest.raises(InternalFailure):
        engines.answer([Request(request_id="bad", source=(10**9, 2), prompt=(1,), max_tokens=2)])
