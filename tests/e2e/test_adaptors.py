"""Other protocols, real engines: the answers are those of our own services."""

from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2

from glossa.client import Client
from service.adaptors.google_translation import translation_service_pb2 as google
from service.adaptors.inference import open_inference_pb2 as oip
from service.adaptors.riva import riva_translation_pb2 as riva
from service.adaptors.tensors import input_tensors
from service.adaptors.vllm import vllm_engine_pb2 as vllm
from service.edge.security.access import GOOGLE, OPEN_INFERENCE, RIVA, VLLM
from tests.e2e.process import serving
from tests.tiny import TEXTS, tiny_config, tiny_model, tiny_tokenizer

LONG = 40  # tokens
ADDED = (OPEN_INFERENCE, VLLM, RIVA, GOOGLE)


@pytest.fixture(scope="module")
def server(exported, tiny_generation_bundle):
    bundle = exported(tiny_model(tiny_config("encoder_decoder", source_language="en", target_language="de")))
    models = {"en-de": str(bundle), "en": str(tiny_generation_bundle)}
    with serving(models=models, adaptors="open-inference,vllm,riva,google-translation") as server:
        yield server


@pytest.fixture(scope="module")
def channel(server):
    with grpc.insecure_channel(server.address) as channel:
        yield channel


@pytest.fixture(scope="module")
def client(server):
    with Client(server.address) as client:
        yield client


def infer_request(*texts, model, **parameters):
    tensor: Any = {"name": "text_input", "datatype": "BYTES", "shape": [len(texts)]}
    tensor["contents"] = {"bytes_contents": [text.encode() for text in texts]}
    fields: Any = {name: {"int64_param": value} for name, value in parameters.items()}
    return oip.ModelInferRequest(model_name=model, inputs=[tensor], parameters=fields)


def texts_of(response):
    outputs = [{"name": one.name, "datatype": one.datatype, "shape": one.shape} for one in response.outputs]
    tensors = input_tensors(oip.ModelInferRequest(inputs=outputs, raw_input_contents=response.raw_output_contents))
    return list(tensors[0].values)


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("model", ["en-de", "en"])
def test_inferences_are_the_answers_of_our_client(channel, client, model, beam_size):
    ask = client.translate if model == "en-de" else client.generate
    expected = [ask(text, model=model, max_tokens=LONG, beam_size=beam_size).text for text in TEXTS]
    options = {"model": model, "max_tokens": LONG, "beam_size": beam_size}
    infer: Any = channel.unary_unary(
        f"/{OPEN_INFERENCE}/ModelInfer",
        request_serializer=oip.ModelInferRequest.SerializeToString,
        response_deserializer=oip.ModelInferResponse.FromString,
    )
    assert texts_of(infer(infer_request(*TEXTS, **options), timeout=30)) == expected
    stream: Any = channel.stream_stream(
        f"/{OPEN_INFERENCE}/ModelStreamInfer",
        request_serializer=oip.ModelInferRequest.SerializeToString,
        response_deserializer=oip.ModelStreamInferResponse.FromString,
    )
    answers = [""]
    for response in stream(iter([infer_request(text, **options) for text in TEXTS]), timeout=30):
        assert not response.error_message
        answers[-1] += texts_of(response.infer_response)[0]
        if response.infer_response.parameters["triton_final_response"].bool_param:
            answers.append("")
    assert answers == [*expected, ""]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_continued_tokens_are_those_of_our_client(channel, client, is_streamed):
    generate: Any = channel.unary_stream(
        f"/{VLLM}/Generate",
        request_serializer=vllm.GenerateRequest.SerializeToString,
        response_deserializer=vllm.GenerateResponse.FromString,
    )
    for text in TEXTS:
        ours = client.generate(text, model="en", max_tokens=LONG, token_logprobs=True, include_tokens=True)
        request = vllm.GenerateRequest(
            tokenized={"input_ids": [1, *tiny_tokenizer().encode(text)]},
            sampling_params={"temperature": 0.0, "max_tokens": LONG},
            stream=is_streamed,
        )
        *chunks, last = generate(request, timeout=30)
        assert tuple(last.complete.output_ids) == ours.tokens
        if is_streamed:
            assert [token for one in chunks for token in one.chunk.token_ids] == list(ours.tokens)
        request.sampling_params.logprobs = 0
        *_, last = generate(request, timeout=30)
        expected = [token.logprob for token in ours.hypotheses[0].token_logprobs]
        assert list(last.complete.output_logprobs.token_logprobs) == expected


def test_translations_are_those_of_our_client(channel, client):
    expected = [client.translate(text, model="en-de").text for text in TEXTS]
    ask: Any = channel.unary_unary(
        f"/{RIVA}/TranslateText",
        request_serializer=riva.TranslateTextRequest.SerializeToString,
        response_deserializer=riva.TranslateTextResponse.FromString,
    )
    message: Any = riva.TranslateTextRequest(
        texts=TEXTS, model="en-de", source_language="en-US", target_language="de-DE"
    )
    assert [one.text for one in ask(message, timeout=30).translations] == expected
    ask = channel.unary_unary(
        f"/{GOOGLE}/TranslateText",
        request_serializer=google.TranslateTextRequest.SerializeToString,
        response_deserializer=google.TranslateTextResponse.FromString,
    )
    languages: Any = {"source_language_code": "en", "target_language_code": "de"}
    for mime_type, start, end in (("text/plain", "", ""), ("text/html", "<p>", "</p>\n")):
        contents = [f"{start}{text}{end}" for text in TEXTS]
        message = google.TranslateTextRequest(
            parent="projects/any", contents=contents, mime_type=mime_type, **languages
        )
        found = [one.translated_text for one in ask(message, timeout=30).translations]
        assert found == [f"{start}{text}{end}" for text in expected]


def test_reflection_describes_the_adaptors(channel):
    ask: Any = channel.stream_stream(
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    listing = reflection_pb2.ServerReflectionRequest(list_services="")
    symbols = [reflection_pb2.ServerReflectionRequest(file_containing_symbol=name) for name in ADDED]
    services, *files = ask(iter([listing, *symbols]), timeout=10)
    assert set(ADDED) <= {one.name for one in services.list_services_response.service}
    assert all(one.file_descriptor_response.file_descriptor_proto for one in files)
