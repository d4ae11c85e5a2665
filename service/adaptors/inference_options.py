"""The parameters of an inference → decoding options and languages (`InferenceOptions`).

An option has the name that it has in glossa.v1, and is a parameter of the request or an input beside the text. Its
value is checked as the field of glossa.v1.DecodingOptions is.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import json_format

from glossa.v1 import glossa_pb2 as pb
from service.adaptors.inference import open_inference_pb2 as oip
from service.adaptors.tensors import Tensor
from service.edge.requests.prompt_encoder import LanguagePair
from service.edge.rpcs.proto_conversion import decoding_options
from service.errors import InvalidRequest
from service.options import OPTIONS, DecodingOptions

FIELDS = pb.DecodingOptions.DESCRIPTOR.fields_by_name
LANGUAGES = ("source_language", "target_language")
STREAM, TIMEOUT = "stream", "timeout"
IGNORED = ("triton_enable_empty_final_response",)  # the last response of a stream is always marked as such
SPLIT, SPLITTER = "split_sentences", "splitter_language"  # as of TranslateRequest
KNOWN = (*FIELDS, *LANGUAGES, STREAM, TIMEOUT, SPLIT, SPLITTER)
SHOWN = 60  # characters of a wrong value
NEEDS_GLOSSA = ("token_logprobs", "top_logprobs", "return_alternatives", "alignment")


@dataclass(frozen=True, kw_only=True)
class InferenceOptions:
    """How a request wants to be answered. stream: None if it does not say. timeout_s: its own limit, or None.
    translation: what the request for each text of a translation has beside it."""

    decoding: DecodingOptions
    languages: LanguagePair
    stream: bool | None
    timeout_s: float | None
    translation: pb.TranslateRequest = field(default_factory=pb.TranslateRequest)


def inference_options(message: oip.ModelInferRequest, inputs: Iterable[Tensor]) -> InferenceOptions:
    """The options of a request. inputs: those beside the text. Raises InvalidRequest; ranges are not checked."""
    given: dict[str, Any] = {}
    for name, parameter in message.parameters.items():
        if name in IGNORED:
            continue
        kind = parameter.WhichOneof("parameter_choice")
        value = getattr(parameter, kind) if kind else None
        if name in FIELDS and FIELDS[name].is_repeated and isinstance(value, str):
            value = _from_json(name, value)
        given[_known(name, f"parameters.{name}")] = value
    for tensor in inputs:
        name, values = _known(tensor.name, f"inputs[{tensor.name}]"), list(tensor.values)
        if name in given:
            raise InvalidRequest(f"inputs[{name}]", "must not be a parameter, too")
        if name in FIELDS and FIELDS[name].is_repeated:
            given[name] = _from_json(name, values[0]) if name == "logit_bias" and len(values) == 1 else values
        elif len(values) == 1:
            given[name] = values[0]
        else:
            raise InvalidRequest(f"inputs[{name}]", f"must have one element, for all texts, got {len(values)}")
    timeout = _typed(given, TIMEOUT, int, "a whole number of microseconds")
    if timeout is not None and timeout < 0:
        raise InvalidRequest(f"parameters.{TIMEOUT}", f"must not be negative, got {timeout}")
    languages = LanguagePair(*(_typed(given, name, str, "a language code") or "" for name in LANGUAGES))
    stream, is_split = (_typed(given, name, bool, "true or false") for name in (STREAM, SPLIT))
    translation = pb.TranslateRequest(
        source_language=languages.source,
        target_language=languages.target,
        split_sentences=is_split,
        splitter_language=_typed(given, SPLITTER, str, "a language code"),
    )
    decoding = _decoding(given, translation.options)
    return InferenceOptions(
        stream=stream,
        timeout_s=timeout / 1e6 if timeout else None,
        languages=languages,
        decoding=decoding,
        translation=translation,
    )


def _known(name: str, field: str) -> str:
    if name in KNOWN:
        return name
    close = difflib.get_close_matches(name[:SHOWN], KNOWN, n=1)
    raise InvalidRequest(
        field[:SHOWN], f"unknown; did you mean {close[0]}?" if close else f"unknown; known: {', '.join(KNOWN)}"
    )


def _typed(given: dict[str, Any], name: str, kind: type, description: str) -> Any:
    value = given.pop(name, None)
    if value is not None and type(value) is not kind:
        raise InvalidRequest(f"parameters.{name}", f"must be {description}, got {value!r:.{SHOWN}}")
    return value


def _from_json(name: str, text: object) -> Any:
    try:
        return json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        form = "object" if name == "logit_bias" else "list"
        raise InvalidRequest(f"options.{name}", f"must be a JSON {form}, got {text!r:.{SHOWN}}") from None


def _enum_name(name: str, value: object, prefix: str) -> str:
    """The name of an enum's value. Booleans are names, too: as a number, False would be the value that is not set.
    prefix: of all names."""
    text = str(value).lower() if isinstance(value, bool) else value
    if not isinstance(text, str):
        raise InvalidRequest(f"options.{name}", f"must be the name of a value, got {value!r:.{SHOWN}}")
    return text if text.startswith(prefix) else prefix + text.upper()


def _decoding(given: dict[str, Any], message: pb.DecodingOptions) -> DecodingOptions:
    """The given options. message: gets them, too."""
    for name, value in given.items():
        kind = FIELDS[name].enum_type
        if kind is not None and value is not None:
            value = _enum_name(name, value, kind.values[0].name.removesuffix("UNSPECIFIED"))
        try:
            json_format.ParseDict({name: value}, message)
        except json_format.ParseError:
            raise InvalidRequest(f"options.{name}", f"must be {OPTIONS[name].type}, got {value!r:.{SHOWN}}") from None
    options = decoding_options(message)
    for name in NEEDS_GLOSSA:
        if name in given and getattr(options, name) != OPTIONS[name].default:
            raise InvalidRequest(f"options.{name}", "has no tensor here; call the services of glossa.v1")
    return options
