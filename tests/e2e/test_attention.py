"""AttentionService over the network: the numbers of PyTorch, whatever other requests run, and only on request."""

import asyncio
import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

import cli.main
from export.verification.torch_reference import TorchReference
from glossa.client import AsyncClient, Client, ClientError
from glossa.client.types import attention_kind
from tests.e2e.process import serving
from tests.tiny import TEXTS, tiny_config, tiny_model, tiny_tokenizer

MODEL = tiny_model(tiny_config())
GENERATOR = tiny_model(
    tiny_config("decoder", positions="alibi", sliding_window=6, num_kv_heads=2, num_decoder_layers=1, qk_norm=True)
)
ENCODER = tiny_model(tiny_config("encoder", num_encoder_layers=1))
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def server(tiny_attention_bundle, tiny_translation_bundle, tiny_recurrent_bundle, exported):
    bundles = {
        "en-de": tiny_attention_bundle,
        "en": exported(GENERATOR, attention=True),
        "blind": tiny_translation_bundle,
        "recurrent": tiny_recurrent_bundle,
        "compressed": exported(tiny_model(tiny_config("decoder", compression_stride=3, sliding_window=4))),
        "texts": exported(ENCODER, attention=True),
    }
    with serving(models={name: str(path) for name, path in bundles.items()}) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with Client(server.address) as client:
        yield client


def weights(reported, kind):
    """float32 (layers, heads, queries, keys) of a kind that was reported in full."""
    matrices = {(one.layer, one.head): np.array(one.rows) for one in reported.matrices if one.kind == kind}
    layers, heads = (sorted({place[axis] for place in matrices}) for axis in (0, 1))
    return np.array([[matrices[layer, head] for head in heads] for layer in layers])


def ids(tokens):
    return [token.token for token in tokens]


@pytest.mark.parametrize("text", TEXTS)
def test_every_attention_of_a_translation_is_that_of_pytorch(client, text):
    reported = client.attend(text, model="en-de", max_tokens=30)
    answer = client.translate(text, model="en-de", max_tokens=30, include_tokens=True)
    source = [*tiny_tokenizer().encode(text), 2]
    assert (reported.target_text, reported.finish_reason) == (answer.text, answer.finish_reason)
    assert ids(reported.source) == source
    assert ids(reported.target) == [1, *answer.tokens[:-1]]
    assert ids(reported.predicted) == list(answer.tokens)
    expected = TorchReference(MODEL).every_attention(tuple(source), tuple(ids(reported.target)))
    assert {matrix.kind for matrix in reported.matrices} == {"encoder", "decoder", "cross"}
    for kind in ("encoder", "decoder", "cross"):
        assert weights(reported, kind) == pytest.approx(expected[f"{kind}_attention"], abs=TOLERANCE)


def test_every_attention_of_a_generation_is_that_of_pytorch(client):
    reported = client.attend(TEXTS[0], model="en", max_tokens=9)
    answer = client.generate(TEXTS[0], model="en", max_tokens=9, include_tokens=True)
    reads = [1, *tiny_tokenizer().encode(TEXTS[0]), *answer.tokens[:-1]]
    assert (ids(reported.source), ids(reported.target)) == ([], reads)
    assert ids(reported.predicted) == [*reads[1:], answer.tokens[-1]]
    expected = TorchReference(GENERATOR).every_attention((), tuple(reads))["decoder_attention"]
    assert weights(reported, "decoder") == pytest.approx(expected, abs=TOLERANCE)


def test_an_encoder_without_a_decoder_reports_its_attention(client):
    reported = client.attend(TEXTS[0], model="texts")
    source = tuple(ids(reported.source))
    assert (source[-len(TEXTS[0].split()) - 1 : -1], reported.target) == (tuple(tiny_tokenizer().encode(TEXTS[0])), ())
    expected = TorchReference(ENCODER).every_attention(source, ())["encoder_attention"]
    assert weights(reported, "encoder") == pytest.approx(expected, abs=TOLERANCE)


def test_a_text_alone_is_analysed_without_an_answer(client):
    reported = client.attend(TEXTS[1], model="en", text_only=True)
    words = tiny_tokenizer().encode(TEXTS[1])
    assert (ids(reported.target), ids(reported.predicted), reported.target_text) == ([1, *words], words, "")
    assert reported.generated_tokens == 0
    expected = TorchReference(GENERATOR).every_attention((), (1, *words))["decoder_attention"]
    assert weights(reported, "decoder") == pytest.approx(expected, abs=TOLERANCE)
    reported = client.attend(TEXTS[1], model="en-de", text_only=True)
    assert {matrix.kind for matrix in reported.matrices} == {"encoder"}
    assert (reported.target, reported.predicted, reported.finish_reason) == ((), (), "")


def test_a_given_answer_is_analysed_as_text_and_as_tokens(client):
    tokens = [*tiny_tokenizer().encode(TEXTS[1]), 2]
    by_text = client.attend(TEXTS[0], model="en-de", target=TEXTS[1])
    by_tokens = client.attend(TEXTS[0], model="en-de", target_tokens=tokens)
    assert by_text.matrices == by_tokens.matrices
    assert ids(by_text.predicted) == ids(by_tokens.predicted) == tokens
    assert by_text.target_text == by_tokens.target_text == TEXTS[1]
    source = (*tiny_tokenizer().encode(TEXTS[0]), 2)
    expected = TorchReference(MODEL).every_attention(source, (1, *tokens[:-1]))
    assert weights(by_text, "cross") == pytest.approx(expected["cross_attention"], abs=TOLERANCE)
    spans = [TEXTS[1][slice(*token.span)].strip() for token in by_text.predicted]
    assert spans == [*TEXTS[1].split(), ""]
    assert [token.text.strip() for token in by_text.target] == ["<bos>", *TEXTS[1].split()]
    assert [TEXTS[0][slice(*token.span)].strip() for token in by_text.source] == [*TEXTS[0].split(), ""]


def test_the_spans_of_an_answer_follow_those_of_its_prompt(client):
    reported = client.attend(TEXTS[0], model="en", target=TEXTS[1])
    whole = TEXTS[0] + TEXTS[1]
    words = [whole[slice(*token.span)].strip() for token in reported.predicted]
    assert words == [*TEXTS[0].split(), *TEXTS[1].split(), ""]


def test_layers_heads_and_means_are_chosen(client):
    options = {"model": "en-de", "target": TEXTS[1]}
    full = client.attend(TEXTS[0], **options)
    cross = weights(full, "cross")
    one = client.attend(TEXTS[0], **options, kinds=["cross"], layers=[2], heads=[3, 1])
    assert [(matrix.kind, matrix.layer, matrix.head) for matrix in one.matrices] == [("cross", 2, 3), ("cross", 2, 1)]
    assert np.array_equal(np.array(one.matrices[0].rows), cross[1, 2])
    (mean,) = client.attend(TEXTS[0], **options, kinds=["cross"], mean_heads=True, mean_layers=True).matrices
    assert (mean.layer, mean.head) == (0, 0)
    assert np.array(mean.rows) == pytest.approx(cross.mean((0, 1)), abs=1e-6)
    assert [matrix.layer for matrix in client.attend(TEXTS[0], **options, mean_heads=True).matrices] == [1, 2] * 3


def test_attention_is_bit_for_bit_the_same_among_other_traffic(server, client):
    alone = [client.attend(text, model="en-de", max_tokens=20).matrices for text in TEXTS]

    async def together():
        async with AsyncClient(server.address) as busy:
            others = [
                *(busy.translate(text, model="en-de") for text in TEXTS * 4),
                *(busy.generate(text, model="en") for text in TEXTS * 2),
            ]
            mine = [busy.attend(text, model="en-de", max_tokens=20) for text in TEXTS]
            reported, _ = await asyncio.gather(asyncio.gather(*mine), asyncio.gather(*others))
            return [one.matrices for one in reported]

    assert asyncio.run(together()) == alone


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ({"model": "blind"}, "FAILED_PRECONDITION", "export it with --attention"),
        ({"model": "recurrent"}, "FAILED_PRECONDITION", "has the weights over its source: alignment `soft`"),
        ({"model": "compressed"}, "FAILED_PRECONDITION", "keys of several tokens, of which there are no maps"),
        ({"model": "en", "kinds": ["cross"]}, "INVALID_ARGUMENT", r"kinds\[0\]: must be one of decoder, got cross"),
        ({"model": "en-de", "layers": [3]}, "INVALID_ARGUMENT", r"layers\[0\]: must be 1..2 for encoder, got 3"),
        ({"model": "en-de", "heads": [1, 1]}, "INVALID_ARGUMENT", r"heads\[1\]: must not repeat a number, got 1 again"),
        ({"model": "en-de", "text_only": True, "target": "a"}, "INVALID_ARGUMENT", "text_only: must be false with a"),
        ({"model": "en-de", "target": "the", "target_tokens": [5]}, "INVALID_ARGUMENT", "not as both"),
        ({"model": "en-de", "target": "the", "max_tokens": 3}, "INVALID_ARGUMENT", "max_tokens: must be 0 unless"),
        ({"model": "en-de", "max_tokens": 65}, "INVALID_ARGUMENT", r"max_tokens: must be 0\.\.64 here, got 65"),
        ({"model": "en-de", "target_tokens": [9, 99]}, "INVALID_ARGUMENT", r"target_tokens\[1\]: must be a token"),
    ],
)
def test_what_cannot_be_reported_is_rejected(client, options, code, message):
    with pytest.raises(ClientError, match=message) as caught:
        client.attend(TEXTS[0], **options)
    assert caught.value.code == code


def test_a_deadline_ends_it_and_leaves_no_row(server, client):
    with pytest.raises(ClientError) as caught:
        client.attend(TEXTS[0], model="en-de", timeout_s=0.0001)
    assert caught.value.code == "DEADLINE_EXCEEDED"
    server.settle()


def test_a_model_reports_its_kinds_of_attention(client):
    def kinds(model):
        return [(attention_kind(one.kind), one.layers, one.heads) for one in client.get_model(model).attention]

    assert kinds("en-de") == [("encoder", 2, 4), ("decoder", 2, 4), ("cross", 2, 4)]
    assert kinds("en") == [("decoder", 1, 4)]
    assert kinds("blind") == []


@pytest.mark.slow
def test_the_graph_is_opened_by_the_first_request(tiny_attention_bundle):
    with serving(models={"en-de": str(tiny_attention_bundle)}) as server, Client(server.address) as client:

        def held():
            server.wait_for_beats()
            return server.metric("glossa_memory_bytes", model="en-de", kind="weights")

        before = held()
        client.translate(TEXTS[0], alignment="hard")
        assert held() == before
        client.attend(TEXTS[0])
        assert held() == before + (tiny_attention_bundle / "fp32" / "attend.onnx").stat().st_size


def run(server, *arguments):
    command = ["attend", *arguments, "--address", server.address]
    result = CliRunner().invoke(cli.main.app, [str(argument) for argument in command])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_shows_the_mean_of_what_is_not_chosen(server, client):
    shown = run(server, TEXTS[0], "--model", "en-de", "--target", TEXTS[1])
    answer, _, title, *lines = shown.splitlines()
    assert (answer, title) == (TEXTS[1], "cross, mean of layers, mean of heads")
    rows = [line.split()[0] for line in lines[-1 - len(TEXTS[1].split()) :]]
    assert rows == [*TEXTS[1].split(), "<eos>"]
    shown = run(server, TEXTS[0], "--model", "en-de", "--text-only", "--layer", 2, "--head", 1, "--head", 4)
    titles = [line for line in shown.splitlines() if line.startswith("encoder")]
    assert titles == ["encoder, layer 2, head 1", "encoder, layer 2, head 4"]


def test_the_command_writes_every_layer_and_head(server, client, tmp_path):
    page, picture = tmp_path / "page.html", tmp_path / "maps.png"
    options = ("--model", "en-de", "--target", TEXTS[1], "--html", page, "--png", picture, "--json")
    reported = json.loads(run(server, TEXTS[0], *options))
    (data,) = re.findall(r'id="data">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL)
    assert len(reported["matrices"]) == len(json.loads(data)["matrices"]) == 3 * 2 * 4
    first, seen = json.loads(data)["matrices"][0], client.attend(TEXTS[0], model="en-de", target=TEXTS[1])
    assert first["weights"] == pytest.approx(np.ravel(seen.matrices[0].rows), abs=1e-4)
    assert picture.read_bytes().startswith(b"\x89PNG")
