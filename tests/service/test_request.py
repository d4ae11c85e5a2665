import pickle
from typing import Any

import pytest

from service.encoder_request import EncoderRequest
from service.options import DecodingOptions
from service.progress import Timings
from service.request import Finished, FinishReason, Request, TextDelta

PROMPT: dict[str, Any] = {"request_id": "r", "prompt": (1,)}


@pytest.mark.parametrize(
    "fields",
    [
        {**PROMPT, "max_tokens": 1},
        {**PROMPT, "max_tokens": 3, "prefix": (5, 6, 7)},
        {"request_id": "r", "prompt": (), "max_tokens": 0, "encoder_request": EncoderRequest(pooling="mean")},
        {**PROMPT, "max_tokens": 1, "encoder_request": EncoderRequest(labels=True)},
    ],
)
def test_consistent_requests_are_made(fields):
    assert Request(**fields).request_id == "r"


@pytest.mark.parametrize(
    "fields",
    [
        {**PROMPT, "max_tokens": 0},
        {**PROMPT, "max_tokens": 2, "prefix": (5, 6, 7)},
        {"request_id": "r", "prompt": (), "max_tokens": 0},
        {"request_id": "r", "prompt": (), "max_tokens": 3},
    ],
)
def test_inconsistent_requests_are_defects_of_the_edge(fields):
    with pytest.raises(AssertionError):
        Request(**fields)


@pytest.mark.parametrize(
    "value",
    [
        Request(**PROMPT, max_tokens=5, options=DecodingOptions(phrases=("a",), logit_bias={5: 1.0}), stop=(".",)),
        TextDelta("a", (5,)),
        Finished(FinishReason.LENGTH, "b", (6,), timings=Timings(total_s=0.5)),
    ],
)
def test_requests_and_events_are_plain_data(value):
    assert pickle.loads(pickle.dumps(value)) == value
