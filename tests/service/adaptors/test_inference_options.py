from typing import Any

import pytest

from service.adaptors.inference import open_inference_pb2 as oip
from service.adaptors.inference_options import InferenceOptions, inference_options
from service.adaptors.tensors import Tensor
from service.edge.requests.prompt_encoder import NO_LANGUAGES, LanguagePair
from service.errors import InvalidRequest
from service.options import DecodingOptions

KINDS = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}


def parsed(*inputs, **parameters):
    fields: Any = {name: {KINDS[type(value)]: value} for name, value in parameters.items()}
    return inference_options(oip.ModelInferRequest(parameters=fields), inputs)


def test_without_parameters_all_is_default():
    assert parsed() == InferenceOptions(decoding=DecodingOptions(), languages=NO_LANGUAGES, stream=None, timeout_s=None)


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"beam_size": 4, "length_penalty": 0.5}, {"beam_size": 4, "length_penalty": 0.5}),
        ({"length_penalty": 2, "beam_size": 2}, {"length_penalty": 2.0, "beam_size": 2}),
        ({"temperature": 0.0}, {"temperature": 0.0}),
        ({"seed": 2**63 - 1}, {"seed": 2**63 - 1}),
        ({"stop": '[".", "!"]'}, {"stop": (".", "!")}),
        ({"allowed_tokens": "[1, 2]"}, {"allowed_tokens": (1, 2)}),
        ({"logit_bias": '{"5": -1.5}'}, {"logit_bias": {5: -1.5}}),
        ({"early_stopping": "never"}, {"early_stopping": "never"}),
        ({"early_stopping": "EARLY_STOPPING_NEVER"}, {"early_stopping": "never"}),
        ({"early_stopping": False, "beam_size": 2}, {"early_stopping": "false", "beam_size": 2}),
        ({"early_stopping": True, "beam_size": 2}, {"early_stopping": "true", "beam_size": 2}),
        ({"ignore_eos": True, "regex": "a+"}, {"ignore_eos": True, "regex": "a+"}),
    ],
)
def test_options_have_the_names_of_the_service(parameters, expected):
    assert parsed(**parameters).decoding == DecodingOptions(**expected)


def test_options_may_be_inputs():
    inputs = [
        Tensor("beam_size", "INT32", (1,), [4]),
        Tensor("stop", "BYTES", (2,), [".", "!"]),
        Tensor("logit_bias", "BYTES", (1,), ['{"5": 1.0}']),
        Tensor("target_language", "BYTES", (1,), ["de"]),
        Tensor("stream", "BOOL", (1,), [False]),
        Tensor("early_stopping", "BOOL", (1,), [False]),
    ]
    options = parsed(*inputs, length_penalty=0.5)
    assert options.decoding == DecodingOptions(
        beam_size=4, stop=(".", "!"), logit_bias={5: 1.0}, length_penalty=0.5, early_stopping="false"
    )
    assert (options.languages, options.stream) == (LanguagePair("", "de"), False)


def test_a_timeout_is_in_microseconds():
    assert parsed(timeout=1_500_000).timeout_s == 1.5
    assert parsed(timeout=0).timeout_s is None


def test_what_tritonclient_adds_by_itself_changes_nothing():
    assert parsed(triton_enable_empty_final_response=True) == parsed()


@pytest.mark.parametrize(
    ("inputs", "parameters", "field", "problem"),
    [
        ((), {"beem_size": 1}, "parameters.beem_size", "did you mean beam_size"),
        ((), {"sequence_id": 1}, "parameters.sequence_id", "unknown"),
        ((), {"priority": 1}, "parameters.priority", "unknown"),
        ((), {"beam_size": 1.5}, "options.beam_size", "must be int, got 1.5"),
        ((), {"beam_size": "many"}, "options.beam_size", "must be int, got 'many'"),
        ((), {"ignore_eos": 1}, "options.ignore_eos", "must be bool"),
        ((), {"early_stopping": "soon"}, "options.early_stopping", "got 'EARLY_STOPPING_SOON'"),
        ((), {"early_stopping": 0}, "options.early_stopping", "must be the name of a value, got 0"),
        ((), {"early_stopping": 2.0}, "options.early_stopping", "must be the name of a value, got 2.0"),
        ((), {"alignment": True}, "options.alignment", "got 'ALIGNMENT_KIND_TRUE'"),
        ((), {"stop": "."}, "options.stop", "must be a JSON list, got '.'"),
        ((), {"logit_bias": "{"}, "options.logit_bias", "must be a JSON object"),
        ((), {"stop": "{}"}, "options.stop", "must be tuple"),
        ((), {"stream": 1}, "parameters.stream", "true or false"),
        ((), {"timeout": -1}, "parameters.timeout", "not be negative"),
        ((), {"source_language": 3}, "parameters.source_language", "a language code"),
        ((), {"token_logprobs": True}, "options.token_logprobs", "call the services of glossa.v1"),
        ((), {"alignment": "soft"}, "options.alignment", "call the services of glossa.v1"),
        ([Tensor("x", "INT32", (1,), [1])], {}, "inputs[x]", "unknown"),
        ([Tensor("beam_size", "INT32", (2,), [1, 2])], {}, "inputs[beam_size]", "one element, for all texts, got 2"),
        ([Tensor("beam_size", "INT32", (1,), [1])], {"beam_size": 1}, "inputs[beam_size]", "a parameter, too"),
    ],
)
def test_what_is_wrong_is_named(inputs, parameters, field, problem):
    with pytest.raises(InvalidRequest) as caught:
        parsed(*inputs, **parameters)
    assert caught.value.field == field
    assert problem in caught.value.problem
