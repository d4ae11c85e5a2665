import pytest

from service.adaptors.sampling_params import sampling_options
from service.adaptors.vllm import vllm_engine_pb2 as vllm
from service.errors import InvalidRequest
from service.options import DecodingOptions


def options(**fields):
    return sampling_options(vllm.SamplingParams(**fields), ends=(2, 7), room=10)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {"temperature": 1.0}),
        ({"temperature": 0.0}, {"temperature": 0.0}),
        ({"temperature": 0.0, "top_p": 0.5, "top_k": 3, "seed": 1}, {"temperature": 0.0}),
        ({"temperature": 0.5, "top_p": 0.25, "top_k": 3}, {"temperature": 0.5, "top_p": 0.25, "top_k": 3}),
        ({"top_k": 2**32 - 1}, {"temperature": 1.0}),
        ({"repetition_penalty": 1.5, "min_p": 0.25}, {"temperature": 1.0, "repetition_penalty": 1.5, "min_p": 0.25}),
        ({"max_tokens": 4, "min_tokens": 2}, {"temperature": 1.0, "max_tokens": 4, "min_tokens": 2}),
        ({"max_tokens": 4000}, {"temperature": 1.0, "max_tokens": 10}),
        ({"stop": ["."], "ignore_eos": True, "n": 3}, {"temperature": 1.0, "stop": (".",), "ignore_eos": True}),
        ({"seed": -1}, {"temperature": 1.0, "seed": 2**32 - 1}),
        ({"logit_bias": {5: -1.0}}, {"temperature": 1.0, "logit_bias": {5: -1.0}}),
        ({"logprobs": 2}, {"temperature": 1.0, "token_logprobs": True, "top_logprobs": 2}),
        ({"stop_token_ids": [7, 2]}, {"temperature": 1.0}),
        ({"json_schema": "{}"}, {"temperature": 1.0, "json_schema": "{}"}),
        ({"json_object": False}, {"temperature": 1.0}),
        ({"json_object": True}, {"temperature": 1.0, "json_schema": '{"type": "object"}'}),
        ({"regex": "a+"}, {"temperature": 1.0, "regex": "a+"}),
        ({"grammar": 'start: "a"'}, {"temperature": 1.0, "lark": 'start: "a"'}),
        ({"choice": {"choices": ["a.", "b"]}}, {"temperature": 1.0, "regex": r"(a\.)|(b)"}),
    ],
)
def test_parameters_become_options(fields, expected):
    assert options(**fields) == DecodingOptions(**{"num_sequences": fields.get("n", 1), **expected})


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"logprobs": -1}, "logprobs"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ({"stop_token_ids": [2, 5]}, "stop_token_ids"),
        ({"structural_tag": "{}"}, "structural_tag"),
        ({"json_schema": ""}, "json_schema"),
        ({"regex": ""}, "regex"),
        ({"grammar": ""}, "grammar"),
        ({"choice": {}}, "choice"),
    ],
)
def test_what_the_service_lacks_is_refused(fields, field):
    with pytest.raises(InvalidRequest) as caught:
        options(**fields)
    assert caught.value.field == f"sampling_params.{field}"
