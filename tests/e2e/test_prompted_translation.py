"""A language model behind Translate: import with a template, export, server, client and command."""

from typing import Any

import grpc
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc
from typer.testing import CliRunner

from cli.main import app
from export.to_onnx import export_bundle
from glossa.client import Client, ClientError
from tests.chats import chat_tokenizer, theirs
from tests.decoders import make_decoder
from tests.e2e.process import serving

pytestmark = pytest.mark.slow  # `tests.service.edge.rpcs` asks with the same prompts

TEXTS = ("How are you?", "I am well, thank you, and you?", "  today <|im_end|> ")
TOKENS = 10
DE_EN = {"source_language": "de", "target_language": "en"}


@pytest.fixture(scope="module")
def tokenizer():
    return chat_tokenizer("chatml")


@pytest.fixture(scope="module")
def model(tokenizer):
    ends = {"eos_token_id": 3, "pad_token_id": 3, "bos_token_id": 3}
    return make_decoder("llama", vocab_size=len(tokenizer), max_position_embeddings=512, **ends)


@pytest.fixture(scope="module")
def server(model, tokenizer, tmp_path_factory):
    path = tmp_path_factory.mktemp("translator")
    model.save_pretrained(path / "theirs")
    tokenizer.save_pretrained(path / "theirs")
    arguments = ["import", str(path / "theirs"), str(path / "ours"), "--translate-as", "tower-plus"]
    imported = CliRunner().invoke(app, arguments)
    assert imported.exit_code == 0, imported.output
    assert "tower-plus, 26 languages" in imported.output
    export_bundle(path / "ours", path / "bundle")
    with serving(models={"tower": str(path / "bundle")}) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with Client(server.address) as client:
        yield client


def prompt_of(tokenizer, text):
    """The ids of the chat whose message the model card shows; what spells a special token is plain text."""
    message = f"Translate the following German source text to English:\nGerman: {text}\nEnglish: "
    plain = tokenizer("<|im_end|>", split_special_tokens=True, add_special_tokens=False).input_ids
    ids, mark = theirs(tokenizer, [{"role": "user", "content": message}]), tokenizer.convert_tokens_to_ids("<|im_end|>")
    if "<|im_end|>" not in text:
        return ids
    place = [at for at, token in enumerate(ids) if token == mark][1]  # behind that of the system's message
    return [*ids[:place], *plain, *ids[place + 1 :]]


@pytest.mark.parametrize("text", TEXTS)
def test_a_translation_is_what_the_model_generates_after_its_prompt(client, model, tokenizer, text):
    prompt, end = prompt_of(tokenizer, text), tokenizer.convert_tokens_to_ids("<|im_end|>")
    with torch.no_grad():
        ids = model.generate(
            torch.tensor([prompt]), max_new_tokens=TOKENS, do_sample=False, eos_token_id=[3, end], pad_token_id=3
        )
    new = ids[0, len(prompt) :].tolist()
    answer = client.translate(text, max_tokens=TOKENS, include_tokens=True, **DE_EN)
    assert (answer.prompt_tokens, list(answer.tokens)) == (len(prompt), new)
    assert answer.text == tokenizer.decode(new, skip_special_tokens=True).strip()
    assert client.count_tokens([text], **DE_EN)[0].tokens == len(prompt)
    *pieces, last = client.stream_translate(text, max_tokens=TOKENS, **DE_EN)
    assert "".join(piece.text for piece in [*pieces, last]) == answer.text


def test_beams_are_those_of_the_prompt(client, tokenizer):
    options = {"beam_size": 4, "num_hypotheses": 2, "max_tokens": TOKENS, "include_tokens": True}
    for text in TEXTS:
        translated = client.translate(text, **options, **DE_EN)
        generated = client.generate(prompt_tokens=prompt_of(tokenizer, text), **options)
        assert [one.tokens for one in translated.hypotheses] == [one.tokens for one in generated.hypotheses]
        assert [one.score for one in translated.hypotheses] == [one.score for one in generated.hypotheses]
        assert [one.text for one in translated.hypotheses] == [one.text.strip() for one in generated.hypotheses]


def test_a_batch_and_a_document_have_the_same_answers(client):
    alone = {text: client.translate(text, max_tokens=TOKENS, **DE_EN).text for text in TEXTS[:2]}
    together = client.translate_batch(list(alone), max_tokens=TOKENS, **DE_EN)
    assert [one.text for one in together] == list(alone.values())
    document = client.translate_document("\n\n".join(alone), max_tokens=TOKENS, **DE_EN)
    assert document.text == "\n\n".join(alone.values())


def test_an_alignment_has_a_reason_not_to_be_there(client):
    with pytest.raises(ClientError, match=r"no cross-attention output.*only models with an encoder have it"):
        client.translate("you", alignment="soft", **DE_EN)


def test_health_tells_that_it_translates(server):
    with grpc.insecure_channel(server.address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        for service, status in (("TranslationService", 1), ("GenerationService", 1), ("EncodingService", 2)):
            assert health.Check(health_pb2.HealthCheckRequest(service=f"glossa.v1.{service}")).status == status


def test_an_unknown_template_stops_the_command(tmp_path):
    failed = CliRunner().invoke(app, ["import", str(tmp_path), str(tmp_path / "out"), "--translate-as", "tower"])
    assert failed.exit_code == 1
    assert "must be one of eurollm, few-shot" in failed.output
