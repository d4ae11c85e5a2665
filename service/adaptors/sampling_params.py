"""Sampling parameters of vLLM's engine protocol → decoding options. What is not known here is refused, not ignored."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from service.adaptors.vllm import vllm_engine_pb2 as vllm
from service.errors import InvalidRequest
from service.options import DecodingOptions

ANY_OBJECT = '{"type": "object"}'
TEXTS = ("json_schema", "regex", "grammar")  # constraints, of which an empty one would be none
UNLIMITED = 1 << 31  # a top_k of -1, as a number that has no sign


def sampling_options(params: vllm.SamplingParams, *, ends: Sequence[int], room: int) -> DecodingOptions:
    """The options of a request.

    ends: the tokens that end an answer of the model. room: new tokens that fit after the prompt; more are not refused,
    as vLLM does not. Raises InvalidRequest for what the service does not have; ranges are not checked.
    """
    given: dict[str, Any] = {
        "temperature": params.temperature if params.HasField("temperature") else 1.0,
        "top_p": params.top_p or 1.0,
        "top_k": params.top_k if params.top_k < UNLIMITED else 0,
        "min_p": params.min_p,
        "frequency_penalty": params.frequency_penalty,
        "presence_penalty": params.presence_penalty,
        "repetition_penalty": params.repetition_penalty or 1.0,
        "max_tokens": _max_tokens(params, room),
        "min_tokens": params.min_tokens,
        "stop": tuple(params.stop),
        "ignore_eos": params.ignore_eos,
        "num_sequences": params.n or 1,
        "logit_bias": dict(params.logit_bias),
        **_constraint(params),
    }
    if params.HasField("seed"):
        given["seed"] = params.seed & 0xFFFFFFFF
    if params.HasField("logprobs"):
        if params.logprobs < 0:
            raise InvalidRequest("sampling_params.logprobs", f"must be 0..20, got {params.logprobs}")
        given |= {"token_logprobs": True, "top_logprobs": params.logprobs}
    if params.HasField("prompt_logprobs"):
        raise InvalidRequest("sampling_params.prompt_logprobs", "must be left out; call ScoringService of glossa.v1")
    if params.HasField("truncate_prompt_tokens"):
        raise InvalidRequest("sampling_params.truncate_prompt_tokens", "must be left out; send the tokens that count")
    if others := set(params.stop_token_ids) - set(ends):
        problem = f"must be among the model's end tokens, {', '.join(map(str, ends))}, got {min(others)}; use stop"
        raise InvalidRequest("sampling_params.stop_token_ids", problem)
    if given["temperature"] == 0:  # greedy, whatever else would shape a distribution
        given |= {"top_p": 1.0, "top_k": 0, "min_p": 0.0}
        given.pop("seed", None)
    return DecodingOptions(**given)


def _max_tokens(params: vllm.SamplingParams, room: int) -> int:
    if not params.HasField("max_tokens"):
        return 0
    if not params.max_tokens:
        raise InvalidRequest("sampling_params.max_tokens", "must be at least 1, got 0")
    return min(params.max_tokens, max(1, room))


def _constraint(params: vllm.SamplingParams) -> dict[str, str]:
    name = params.WhichOneof("constraint")
    if (name in TEXTS and not getattr(params, name)) or (name == "choice" and not params.choice.choices):
        raise InvalidRequest(f"sampling_params.{name}", "must not be empty")
    match name:
        case None:
            return {}
        case "json_schema":
            return {"json_schema": params.json_schema}
        case "json_object":
            return {"json_schema": ANY_OBJECT} if params.json_object else {}
        case "regex":
            return {"regex": params.regex}
        case "grammar":
            return {"lark": params.grammar}
        case "choice":
            return {"regex": "|".join(f"({re.escape(choice)})" for choice in params.choice.choices)}
        case other:
            raise InvalidRequest(f"sampling_params.{other}", "is not supported; use json_schema, regex or grammar")
