"""Languages on a real server: which one a text is in, the model that translates it, and two models in turn."""

import dataclasses
from typing import Any

import grpc
import numpy as np
import pytest

from glossa.client import Client, ClientError
from glossa.client.languages import LanguagePair, TranslationRoute
from glossa.v1 import glossa_pb2 as pb
from glossa.v1 import glossa_pb2_grpc as rpc
from service.edge.models.alignment import composed
from tests.calibrated import CALIBRATION
from tests.cli.command import run
from tests.e2e.process import serving
from tests.languages import between
from tests.tiny import TEXTS, tiny_config, tiny_model

SEED = 24  # its answers to the first texts are complete, so that the second model reads them
PIVOT = {"source_language": "en", "target_language": "fr"}
GERMAN = "Meine Schwester fährt morgen mit dem Zug nach Hause."
TEXT = TEXTS[0]


@pytest.fixture(scope="module")
def server(exported, tmp_path_factory):
    bundle, folder = exported(tiny_model(tiny_config(), seed=SEED), attention=True), tmp_path_factory.mktemp("pairs")
    pairs = ("en-de", "de-fr", "it-de")
    models = {pair: str(between(bundle, folder / pair, *pair.split("-"))) for pair in pairs[2:]}
    sure = {"calibrations": {"fp32": dataclasses.asdict(CALIBRATION)}}
    models |= {pair: str(between(bundle, folder / pair, *pair.split("-"), **sure)) for pair in pairs[:2]}
    with serving(models=models, precision="fp32", engines=1) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with Client(server.address, retries=False) as client:
        yield client


@pytest.fixture(scope="module")
def translation(server):
    with grpc.insecure_channel(server.address) as channel:
        yield rpc.TranslationServiceStub(channel)


def test_languages_of_texts(client):
    german, empty = client.detect_language([GERMAN, "12 %"], max_results=2)
    assert (german[0].language, len(german), empty) == ("de", 2, ())
    (found,) = client.detect_language(["Haus"], languages=["deu_Latn", "fra_Latn"])
    assert [one.language for one in found] == ["deu_Latn", "fra_Latn"]
    assert sum(one.probability for one in found) == pytest.approx(1)


@pytest.mark.parametrize(
    ("texts", "options", "problem"),
    [
        ([], {}, r"texts: must be 1\.\.1024, got 0"),
        (["a"] * 1025, {}, r"texts: must be 1\.\.1024, got 1025"),
        (["a"], {"max_results": 21}, r"max_results: must be 1\.\.20, got 21"),
        (["a"], {"languages": ["de", "tlh"]}, r"languages\[1\]: must be one of af, als, .*, got 'tlh'"),
    ],
)
def test_bad_requests_to_detect_are_refused(client, texts, options, problem):
    with pytest.raises(ClientError, match=problem) as caught:
        client.detect_language(texts, **options)
    assert caught.value.code == "INVALID_ARGUMENT"


def test_pairs_and_what_serves_them(client):
    direct = [
        LanguagePair("de", "fr", ("de-fr",), ()),
        LanguagePair("en", "de", ("en-de",), ()),
        LanguagePair("it", "de", ("it-de",), ()),
    ]
    assert client.list_language_pairs() == direct
    found = client.list_language_pairs("en-GB", include_pivots=True)
    assert found == [direct[1], LanguagePair("en", "fr", (), ("de",))]


def test_the_languages_choose_the_model(client):
    named = client.translate(TEXT, model="en-de")
    assert named.route is None
    found = client.translate(TEXT, source_language="en-GB", target_language="deu_Latn")
    assert (found.text, found.route) == (named.text, TranslationRoute("en-de"))
    pieces = list(client.stream_translate(TEXT, source_language="en", target_language="de"))
    assert pieces[-1].answer.route == TranslationRoute("en-de")
    batch = list(client.translate_batch(TEXTS[:3], source_language="it", target_language="de"))
    assert [one.text for one in batch] == [client.translate(text, model="it-de").text for text in TEXTS[:3]]
    document = client.translate_document(TEXT, source_language="en", target_language="de")
    assert (document.text, document.route) == (named.text, TranslationRoute("en-de"))


def test_the_language_of_a_text_is_detected(client):
    named = client.translate(TEXT, model="en-de")
    for options in ({"model": "en-de"}, {"target_language": "de"}):
        found = client.translate(TEXT, source_language="auto", **options)
        assert found.text == named.text
        assert found.detected_language.language == "en"
        assert found.detected_language.probability > 0.6
        last = list(client.stream_translate(TEXT, source_language="auto", **options))[-1]
        assert last.answer.detected_language == found.detected_language
    (item,) = client.translate_batch([TEXT], source_language="auto", model="en-de")
    assert item.detected_language.language == "en"
    page = f"<style>der die das</style><p>{TEXT}</p>"
    document = client.translate_document(page, format="html", source_language="auto", target_language="de")
    assert (document.detected_language.language, document.route.model) == ("en", "en-de")
    marked = client.translate(f"<b>{TEXT}</b>", markup=["tags"], source_language="auto", target_language="de")
    assert marked.detected_language.language == "en"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "model: must be named when several fit; one of: de-fr, en-de, it-de"),
        ({"target_language": "de"}, "model: must be named, or source_language given: several models translate into de"),
        (
            {"source_language": "fr", "target_language": "en"},
            "target_language: no model served here translates from fr",
        ),
        (
            {"source_language": "fr", "model": "en-de"},
            "source_language: must be en, which model 'en-de' translates",
        ),
        ({"pivot_language": "de", "model": "en-de"}, "pivot_language: must be left out with a model's name"),
        ({**PIVOT, "pivot_language": "it"}, "pivot_language: no two models translate from en into fr by way of 'it'"),
        ({"text": GERMAN, "model": "en-de", "source_language": "auto"}, r"seems to be in de \(1\.00\), and is transl"),
        ({"text": "12", "model": "en-de", "source_language": "auto"}, "source_language: auto: the text has no words"),
        ({**PIVOT, "text": " "}, "text: must not be empty or blank"),
        ({**PIVOT, "text": "black"}, "text: its translation into de by model 'en-de' must be at most 64 tokens, got"),
    ],
)
def test_what_cannot_be_answered_is_refused(client, options, problem):
    options = {"text": TEXT, **options}
    with pytest.raises(ClientError, match=problem) as caught:
        client.translate(options.pop("text"), **options)
    assert caught.value.code == "INVALID_ARGUMENT"


def test_items_of_several_languages_need_a_model(client):
    with pytest.raises(ClientError, match="model: must be named with source_language auto, because all items"):
        list(client.translate_batch([TEXT], source_language="auto", target_language="de"))


@pytest.mark.parametrize("options", [{}, {"beam_size": 3}])
@pytest.mark.parametrize("text", TEXTS[:3])
def test_two_models_answer_as_in_two_calls(client, text, options):
    between = client.translate(text, model="en-de", **options)
    last = client.translate(between.text, model="de-fr", **options)
    route = TranslationRoute("de-fr", "en-de", "de", between.text)
    found = client.translate(text, **PIVOT, **options)
    assert (found.text, found.route) == (last.text, route)
    assert found.prompt_tokens == between.prompt_tokens
    assert found.generated_tokens == between.generated_tokens + last.generated_tokens
    *_, end = client.stream_translate(text, **PIVOT, **options)
    assert (end.answer.text, end.answer.route) == (last.text, route)
    (item,) = client.translate_batch([text], **PIVOT, **options)
    assert (item.text, item.route) == (last.text, route)


def test_sentences_pass_both_models_one_by_one(client):
    alone = [client.translate(text, **PIVOT) for text in TEXTS[:2]]
    whole = client.translate("\n".join(TEXTS[:2]), split_sentences=True, **PIVOT)
    assert whole.text == "\n".join(one.text for one in alone)
    assert whole.route.pivot_text == "\n".join(one.route.pivot_text for one in alone)
    document = client.translate_document("\n\n".join(TEXTS[:2]), **PIVOT)
    assert document.text == "\n\n".join(one.text for one in alone)
    assert document.route == TranslationRoute("de-fr", "en-de", "de")
    assert not document.errors


def test_the_alignment_is_that_of_both_models(translation):
    def aligned(text, **fields):
        options = pb.DecodingOptions(alignment=pb.ALIGNMENT_KIND_BOTH)
        return translation.Translate(pb.TranslateRequest(text=text, options=options, **fields))

    def spans(found):
        return [(span.start, span.end) for span in found]

    first = aligned(TEXT, model="en-de")
    second = aligned(first.text, model="de-fr")
    both = aligned(TEXT, **PIVOT).hypotheses[0].alignment
    one, other = first.hypotheses[0].alignment, second.hypotheses[0].alignment
    expected = composed(
        np.array([row.weights for row in one.rows], np.float32),
        spans(one.target_spans),
        np.array([row.weights for row in other.rows], np.float32),
        spans(other.source_spans),
    )
    weights = np.array([row.weights for row in both.rows])
    np.testing.assert_allclose(weights, expected, atol=1e-6)
    assert list(both.positions) == list(weights.argmax(axis=1))
    assert (both.source_spans, both.target_spans) == (one.source_spans, other.target_spans)


@pytest.mark.parametrize("options", [{}, {"beam_size": 3}])
@pytest.mark.parametrize("text", TEXTS[:3])
def test_the_confidence_of_a_word_is_lowered_by_that_of_the_words_between(client, text, options):
    first = client.translate(text, model="en-de", confidence=True, **options)
    aligned: list[Any] = [
        client.translate(first.text, model="de-fr", confidence=True, alignment="soft", alignment_layer=layer, **options)
        for layer in (1, 2)
    ]
    second, links = aligned[0], aligned[0].hypotheses[0].alignment
    rows = np.mean([np.array(one.hypotheses[0].alignment.rows) for one in aligned], axis=0)
    expected = []
    for word in second.confidence.words:
        weight = total = 0.0
        for row, target in zip(rows, links.target_spans, strict=True):
            if not shared(target, word.span):
                continue
            for link, source in zip(row, links.source_spans, strict=True):
                parts = [(shared(source, one.span), one.confidence) for one in first.confidence.words]
                if characters := sum(count for count, _ in parts):
                    weight += link
                    total += link * sum(count * sure for count, sure in parts) / characters
        expected.append(word.confidence * (0.6 + 0.4 * total / weight))
    found = client.translate(text, **PIVOT, confidence=True, uncertain_below=0.3, **options).confidence
    assert [word.confidence for word in found.words] == pytest.approx(expected)
    assert [word.span for word in found.words] == [word.span for word in second.confidence.words]
    assert [word.is_uncertain for word in found.words] == [one < 0.3 for one in expected]
    share = sum(expected) / sum(word.confidence for word in second.confidence.words)
    assert found.sentence == pytest.approx(second.confidence.sentence * share)
    assert not found.calibrated
    marked = client.translate(f"<b>{text}</b>", markup=["tags"], **PIVOT, confidence=True, **options)
    assert marked.confidence.sentence == pytest.approx(found.sentence)
    document = client.translate_document(text, **PIVOT, confidence=True, **options)
    assert document.confidences[0].confidence == pytest.approx(found.sentence)


def shared(one, other):
    """How many characters two spans share."""
    return max(0, min(one[1], other[1]) - max(one[0], other[0]))


def test_a_confidence_by_two_models_needs_both_calibrations_and_no_stream(client):
    way: Any = {"source_language": "it", "target_language": "fr", "confidence": True}
    for ask in (client.translate, client.translate_document):
        with pytest.raises(ClientError, match="model 'it-de' has no calibrated confidence") as caught:
            ask(TEXT, **way)
        assert caught.value.code == "FAILED_PRECONDITION"
    with pytest.raises(ClientError, match="include_confidence: must be false in a stream in a translation by way of"):
        list(client.stream_translate(TEXT, **PIVOT, confidence=True))


def test_marks_and_terms_pass_both_models(client):
    words = TEXT.split()
    text = f"<b>{words[0]} {words[1]}</b> {' '.join(words[2:])} <br/>"
    found = client.translate(text, markup=["tags"], **PIVOT)
    assert found.markup.placement == "alignment"
    assert found.markup.plain_text == client.translate(TEXT, **PIVOT).text
    assert (found.text.count("<b>"), found.text.count("</b>"), found.text.count("<br/>")) == (1, 1, 1)
    assert found.text.index("<b>") < found.text.index("</b>")
    assert "<" not in found.route.pivot_text
    for options in ({}, {"beam_size": 3}):
        termed = client.translate(TEXT, glossary={words[1]: "cat"}, **PIVOT, **options)
        assert "cat" in termed.text.split()
        assert (termed.glossary.terms, termed.glossary.met) == (1, 1)


def test_the_command_detects_and_translates(server, client, tmp_path):
    address = ("--address", server.address)
    assert run("detect", GERMAN, *address).startswith("de\t1.000\t")
    lines = run("detect", "-", "de", "en", *address, lines=f"{GERMAN}\n12\n{TEXT}\n").splitlines()
    assert [line[:2] for line in lines] == ["de", "", "en"]
    languages = ("--source-language", "auto", "--target-language", "fr")
    assert run("translate", TEXT, *languages, *address).strip()
    way = ("--source-language", "en", "--target-language", "fr", *address, "--pivot-language")
    (tmp_path / "a.txt").write_text(TEXT)
    for given in ((TEXT,), ("--batch", tmp_path / "a.txt"), ("--document", tmp_path / "a.txt")):
        assert run("translate", *given, *way, "de").strip() == client.translate(TEXT, **PIVOT).text
    problem = "--pivot-language: no two models translate from en into fr by way of 'it'"
    assert problem in run("translate", TEXT, *way, "it", fails=True)
