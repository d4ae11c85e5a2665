"""Texts of several sentences for a model that was trained on single ones: the answer is that of its sentences, put
together, in every call. The model's closed vocabulary has no full stops; a line is a sentence."""

import math
import struct

import grpc
import pytest

from glossa.client import Client, ClientError
from glossa.v1 import glossa_pb2 as pb
from glossa.v1 import glossa_pb2_grpc as rpc
from service.adaptors.inference import open_inference_pb2 as oip
from tests.bundles.make import __file__ as kept
from tests.e2e.process import serving

BUNDLE = kept.replace("make.py", "format-12/bundle")  # sentences of up to 16 tokens, with calibrated confidence
OLD = BUNDLE.replace("format-12", "format-11")
LINES = ("the small red house stands", "a black cat sleeps under the table", "three birds sing in the garden")
GAPS = ("", "\r\n", "\n\n  ")
TEXT = "".join(gap + line for gap, line in zip(GAPS, LINES, strict=True)) + "\n"
INFER = "/inference.GRPCInferenceService/ModelInfer"


@pytest.fixture(scope="module")
def server():
    with serving(models={"m": BUNDLE, "old": OLD}, precision="fp32", adaptors="open-inference") as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with Client(server.address, retries=False) as client:
        yield client


@pytest.fixture(scope="module")
def channel(server):
    with grpc.insecure_channel(server.address) as channel:
        yield channel


def together(parts):
    return "".join(gap + part for gap, part in zip(GAPS, parts, strict=True)) + "\n"


def test_the_answer_is_that_of_the_sentences(client):
    alone = [client.translate(line, model="m", include_tokens=True) for line in LINES]
    whole = client.translate(TEXT, model="m", include_tokens=True)
    assert len({one.text for one in alone}) > 1
    assert whole.text == together(one.text for one in alone) == client.translate_document(TEXT, model="m").text
    assert list(whole.tokens) == [token for one in alone for token in one.tokens]
    assert whole.prompt_tokens == sum(one.prompt_tokens for one in alone)
    assert whole.generated_tokens == sum(one.generated_tokens for one in alone)
    assert whole.finish_reason == "end_of_sequence"


@pytest.mark.parametrize("options", [{}, {"max_tokens": 100}, {"token_logprobs": True, "include_tokens": True}])
def test_a_stream_sends_the_sentences_in_order(client, options):
    whole = client.translate(TEXT, model="m", **options)
    *pieces, last = client.stream_translate(TEXT, model="m", **options)
    assert "".join(piece.text for piece in (*pieces, last)) == last.answer.text == whole.text
    assert (last.answer.tokens, last.answer.hypotheses) == (whole.tokens, whole.hypotheses)
    assert last.answer.generated_tokens == whole.generated_tokens


def test_items_of_a_batch_are_split_alike(client):
    texts = [TEXT, *LINES, TEXT]
    answers = [one.text for one in client.translate_batch(texts, model="m")]
    assert answers == [client.translate(text, model="m").text for text in texts]


def infer(channel, *texts, output="text_output", **parameters):
    request = oip.ModelInferRequest(model_name="m")
    tensor = request.inputs.add(name="text_input", datatype="BYTES", shape=[len(texts)])
    tensor.contents.bytes_contents.extend(text.encode() for text in texts)
    request.outputs.add(name=output)
    for name, value in parameters.items():
        request.parameters[name].bool_param = value
    call = channel.unary_unary(INFER, oip.ModelInferRequest.SerializeToString, oip.ModelInferResponse.FromString)
    (raw,) = call(request).raw_output_contents
    if output != "text_output":
        return list(struct.unpack(f"<{len(texts)}i", raw))
    answers = []
    while raw:
        (size,) = struct.unpack_from("<I", raw)
        answers.append(raw[4 : 4 + size].decode())
        raw = raw[4 + size :]
    return answers


def test_the_open_inference_protocol_splits_alike(channel, client):
    expected = [client.translate(text, model="m") for text in (TEXT, LINES[0])]
    assert infer(channel, TEXT, LINES[0]) == [one.text for one in expected]
    assert infer(channel, TEXT, LINES[0], output="prompt_tokens") == [one.prompt_tokens for one in expected]
    short = "a black cat\nthe dog"
    assert infer(channel, short, split_sentences=False) == [
        client.translate(short, model="m", split_sentences=False).text
    ]


def test_the_best_answers_are_the_best_combinations(client):
    options = {"model": "m", "beam_size": 4, "num_hypotheses": 3, "alignment": "both", "confidence": True}
    alone = [client.translate(line, **options) for line in LINES]
    whole = client.translate(TEXT, **options)
    sums = sorted(
        (
            (one.score + two.score + three.score, together((one.text, two.text, three.text)))
            for one in alone[0].hypotheses
            for two in alone[1].hypotheses
            for three in alone[2].hypotheses
        ),
        reverse=True,
    )
    assert [one.score for one in whole.hypotheses] == pytest.approx([total / 3 for total, _ in sums[:3]])
    assert [one.text for one in whole.hypotheses] == [text for _, text in sums[:3]]
    best, parts = whole.hypotheses[0], [one.hypotheses[0] for one in alone]
    assert best.cumulative_logprob == pytest.approx(sum(one.cumulative_logprob for one in parts))
    words = sum((one.confidence.words for one in parts), ())
    assert [word.confidence for word in best.confidence.words] == [word.confidence for word in words]
    mean = sum(one.confidence.sentence * len(one.confidence.words) for one in parts) / len(words)
    assert best.confidence.sentence == pytest.approx(mean)
    for word, part in zip(best.confidence.words, words, strict=True):
        assert best.text[slice(*word.span)] in "".join(one.text for one in parts)
        assert word.span[1] - word.span[0] == part.span[1] - part.span[0]
    spans = [TEXT[slice(*span)].strip() for span in best.alignment.source_spans]
    assert [span for span in spans if span] == TEXT.split()
    for position, row in zip(best.alignment.positions, best.alignment.rows, strict=True):
        assert math.isclose(sum(row), 1.0, rel_tol=1e-5)
        assert max(range(len(row)), key=row.__getitem__) == position
    assert "".join(best.text[slice(*span)].strip() for span in best.alignment.target_spans) == "".join(
        best.text.split()
    )


def test_log_probabilities_spell_the_whole_answer(client):
    best = client.translate(TEXT, model="m", token_logprobs=True, top_logprobs=2).hypotheses[0]
    assert "".join(token.text for token in best.token_logprobs) == best.text
    assert best.cumulative_logprob == pytest.approx(sum(token.logprob for token in best.token_logprobs))


@pytest.mark.parametrize("limit", range(1, 7))
def test_max_tokens_limits_the_whole(client, limit):
    unlimited = client.translate(TEXT, model="m", include_tokens=True)
    whole = client.translate(TEXT, model="m", include_tokens=True, max_tokens=limit)
    assert list(whole.tokens) == list(unlimited.tokens)[:limit]
    assert unlimited.text.startswith(whole.text)
    is_cut = limit < len(unlimited.tokens)
    assert whole.finish_reason == ("length" if is_cut else "end_of_sequence")
    *pieces, last = client.stream_translate(TEXT, model="m", max_tokens=limit)
    assert "".join(piece.text for piece in (*pieces, last)) == whole.text


def test_samples_come_from_one_seed(client):
    options = {"model": "m", "num_sequences": 2, "temperature": 2.0, "max_tokens": 30}
    drawn = client.translate(TEXT, **options)
    assert drawn.seed is not None
    again = client.translate(TEXT, seed=drawn.seed, **options)
    assert [one.text for one in again.hypotheses] == [one.text for one in drawn.hypotheses]
    assert len(drawn.hypotheses) == 2


def test_marks_are_kept_across_sentences(client):
    text = "<p><b>the small red house\n<i>a black</i> cat</b>\nthe {n} dog<br/></p>"
    whole = client.translate(text, model="m", markup=["tags", "placeholders"], confidence=True)
    for mark in ("<p>", "<b>", "<i>", "</i>", "</b>", "{n}", "<br/>", "</p>"):
        assert whole.text.count(mark) == 1
    assert whole.text.index("<b>") < whole.text.index("<i>") < whole.text.index("</i>") < whole.text.index("</b>")
    plain = client.translate("the small red house\na black cat\nthe dog", model="m")
    assert whole.markup.plain_text == plain.text
    assert whole.markup.source_text == "the small red house\na black cat\nthe dog"
    with pytest.raises(ClientError, match="is not closed"):
        client.translate("<b>the dog\na cat", model="m", markup=["tags"])


def test_terms_are_counted_once(client):
    text = "a black cat\nthe small cat\nthe dog"
    whole = client.translate(text, model="m", beam_size=2, glossary={"cat": "tree", "dog": "birds"})
    assert (whole.glossary.terms, whole.glossary.met + len(whole.glossary.unmet)) == (2, 2)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"prefix": "a"}, "options.prefix"),
        ({"stop": ["dog"]}, "options.stop"),
        ({"min_tokens": 2}, "options.min_tokens"),
        ({"phrases": ["dog"]}, "options.phrases"),
        ({"regex": "a.*"}, "options.regex"),
        ({"return_alternatives": True, "num_hypotheses": 2}, "options.return_alternatives"),
        ({"max_tokens": -1}, "options.max_tokens"),
        ({"splitter_language": "xx"}, "splitter_language"),
        ({"splitter_language": "de", "split_sentences": False}, "splitter_language"),
    ],
)
def test_what_is_about_the_whole_answer_is_refused(client, options, field):
    with pytest.raises(ClientError, match=field) as error:
        client.translate(TEXT, model="m", **options)
    assert error.value.code == "INVALID_ARGUMENT"
    assert client.translate(LINES[0], model="m").text, "the server goes on"


def test_the_error_of_a_sentence_names_it(client):
    with pytest.raises(ClientError, match=r"zebra.*the sentence at character 10"):
        client.translate("the dog\n\na zebra", model="m")


def test_older_bundles_and_requests_may_read_texts_as_a_whole(client):
    text = "a black cat\nthe dog"
    whole = client.translate(text, model="old").text
    assert client.translate(text, model="m", split_sentences=False).text == whole
    assert client.translate(text, model="old", split_sentences=True).text == client.translate(text, model="m").text
    assert [client.get_model(name).splits_sentences for name in ("m", "old")] == [True, False]


def test_a_deadline_ends_all_sentences(client, channel):
    text = "\n".join(LINES * 100)
    with pytest.raises(ClientError) as error:
        client.translate(text, model="m", timeout_s=0.05)
    # Where the machine is slow, a sentence is refused as one that cannot be answered in time.
    assert error.value.code == "DEADLINE_EXCEEDED" or error.value.reason == "DEADLINE_TOO_SOON"
    call = rpc.TranslationServiceStub(channel).Translate.future(pb.TranslateRequest(text=text, model="m"))
    call.cancel()
    assert client.translate(TEXT, model="m").text
