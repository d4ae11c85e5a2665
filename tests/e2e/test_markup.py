"""Marks through the whole service: the answers of a real server with marks, and without them."""

import random
import re
from pathlib import Path
from xml.etree import ElementTree

import grpc
import pytest

from glossa.client import Client, ClientError
from glossa.v1 import glossa_pb2 as pb
from glossa.v1 import glossa_pb2_grpc as pb_grpc
from tests.e2e.process import serving
from tests.tiny import TEXTS

SURE = Path(__file__).parents[1] / "bundles/format-11/bundle"  # with calibrated confidence
TAG = re.compile(r"<[^>]+>|\{\w+\}")


PAGE = Path(__file__).parents[2] / "docs" / "markup.md"


@pytest.fixture(scope="module")
def terms(tmp_path_factory):
    """The file of the glossary `estate`."""
    file = tmp_path_factory.mktemp("glossaries") / "terms.tsv"
    file.write_text("red house\tgarden\n")
    return file


@pytest.fixture(scope="module")
def server(tiny_attention_bundle, tiny_translation_bundle, terms):
    models = {"aligned": str(tiny_attention_bundle), "plain": str(tiny_translation_bundle), "sure": str(SURE)}
    with serving(models=models, glossaries={"estate": str(terms)}) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with Client(server.address) as client:
        yield client


def marked(text, draw):
    """A text of words with random tags and placeholders between them, each different, and these marks."""
    words, marks = text.split(), []
    for number in range(draw.randint(1, 3)):
        start = draw.randrange(len(words))
        end = draw.randrange(start, len(words))
        if draw.random() < 0.5:
            words[start], words[end] = f"<t{number}>{words[start]}", f"{words[end]}</t{number}>"
            marks += [f"<t{number}>", f"</t{number}>"]
        else:
            words.insert(start, f"{{p{number}}}")
            marks.append(f"{{p{number}}}")
    return " ".join(words), marks


def is_nested(text):
    try:
        ElementTree.fromstring(f"<all>{text}</all>")
    except ElementTree.ParseError:
        return False
    return True


@pytest.mark.parametrize("model", ["aligned", "plain"])
def test_answers_are_those_without_marks_and_have_every_mark_once(client, model):
    draw, tried = random.Random(5), 0
    while tried < 20:
        text = draw.choice(TEXTS)
        raw, marks = marked(text, draw)
        if not is_nested(raw):
            continue
        tried += 1
        answer = client.translate(raw, model=model, markup=("tags", "placeholders"), max_tokens=12)
        plain = client.translate(text, model=model, max_tokens=12)
        assert sorted(TAG.findall(answer.text)) == sorted(marks), answer.text
        assert is_nested(answer.text), answer.text
        assert (answer.markup.source_text, answer.markup.plain_text) == (text, plain.text)
        assert " ".join(TAG.sub(" ", answer.text).split()) == plain.text
        assert answer.markup.placement == ("alignment" if model == "aligned" else "proportional")
        assert answer.hypotheses == ()


def test_every_hypothesis_has_the_marks(client):
    raw = "the <b>small</b> red house stands behind {a} the old tree"
    options = {"model": "aligned", "beam_size": 4, "num_hypotheses": 4, "max_tokens": 12}
    answer = client.translate(raw, markup=("tags", "placeholders"), **options)
    plain = client.translate(TEXTS[0], **options)
    assert [one.plain_text for one in answer.hypotheses] == [one.text for one in plain.hypotheses]
    for hypothesis in answer.hypotheses:
        assert sorted(TAG.findall(hypothesis.text)) == ["</b>", "<b>", "{a}"]
        assert hypothesis.alignment is None
    assert answer.text == answer.hypotheses[0].text


def test_a_requested_alignment_is_that_of_the_plain_texts(client):
    options = {"model": "aligned", "alignment": "both", "alignment_layer": 1, "max_tokens": 12}
    answer = client.translate("the <b>small red</b> house stands behind the old tree", markup=("tags",), **options)
    plain = client.translate(TEXTS[0], **options)
    assert answer.hypotheses[0].alignment == plain.hypotheses[0].alignment


@pytest.mark.parametrize(
    ("text", "kinds", "field", "expected"),
    [
        ("the <b>small house", ("tags",), "text", "<b> at character 5 is not closed"),
        ("the <b>small <i>red</b></i> house", ("tags",), "text", "</b> at character 20 closes <i> at character 14"),
        ("{name}", ("placeholders",), "text", "words beside its marks"),
        ("<b/>" * 257 + "the", ("tags",), "text", "at most 256 tags"),
        ("<b>" * 33 + "the" + "</b>" * 33, ("tags",), "text", "at most 32 elements"),
        ("the house {x}", ("tags",), "text", "does not know these words: {"),
    ],
)
def test_markup_that_cannot_be_read_is_rejected(client, text, kinds, field, expected):
    with pytest.raises(ClientError) as caught:
        client.translate(text, model="aligned", markup=kinds)
    assert caught.value.code == "INVALID_ARGUMENT"
    assert field in str(caught.value)
    assert expected in str(caught.value)


@pytest.mark.parametrize("beam", [1, 4])
def test_terms_of_a_glossary_get_into_the_answer(client, beam):
    options = {"model": "aligned", "beam_size": beam, "max_tokens": 16}
    plain = client.translate(TEXTS[0], **options)
    missing = next(word for text in TEXTS for word in text.split() if word not in plain.text.split())
    present = plain.text.split()[0]
    answer = client.translate(TEXTS[0], glossary={"red house": [missing]}, **options)
    assert missing in answer.text.split()
    assert (answer.glossary.terms, answer.glossary.met, answer.glossary.unmet) == (1, 1, ())
    answer = client.translate(TEXTS[0], glossary={"old tree": ["x", present], "garden": "y"}, **options)
    assert (answer.text, answer.glossary.terms, answer.glossary.met) == (plain.text, 1, 1)
    assert plain.glossary is None


def test_marks_and_terms_go_together(client):
    options = {"model": "aligned", "max_tokens": 16}
    raw = "the small <b>red house</b> stands behind the old tree"
    answer = client.translate(raw, markup=["tags"], glossary={"red house": "garden"}, **options)
    assert answer.glossary.met == 1
    assert answer.text.replace("<b>", "").replace("</b>", "") == answer.markup.plain_text
    assert re.search("<b>[^<]*garden[^<]*</b>", answer.text), answer.text


def test_a_term_that_the_model_cannot_generate_is_unmet(client):
    for beam in (1, 4):
        options = {"model": "plain", "beam_size": beam, "max_tokens": 8}
        answer = client.translate(TEXTS[0], glossary={"red house": "Schornsteinfeger"}, **options)
        assert (answer.glossary.met, answer.glossary.unmet) == (0, ("red house",))
        assert answer.text == client.translate(TEXTS[0], **options).text


@pytest.mark.parametrize(
    ("glossary", "field"),
    [
        ({"": "x"}, "glossary.terms[0].source"),
        ({"house": []}, "glossary.terms[0].targets"),
        ({str(place): "x" for place in range(1001)}, "glossary.terms"),
        ("medicine", "glossary.name"),
    ],
)
def test_a_glossary_that_cannot_be_used_is_rejected(client, glossary, field):
    with pytest.raises(ClientError) as caught:
        client.translate(TEXTS[0], model="aligned", glossary=glossary)
    assert (caught.value.code, field in str(caught.value)) == ("INVALID_ARGUMENT", True), caught.value


def test_marks_and_confidence_go_together(client):
    options = {"model": "sure", "confidence": True, "max_tokens": 12}
    answer = client.translate("the <b>small</b> red house", markup=["tags"], **options)
    plain = client.translate("the small red house", **options)
    assert answer.markup.plain_text == plain.text
    assert answer.confidence == plain.confidence
    assert answer.confidence.words
    assert answer.hypotheses == ()


def test_confidence_needs_an_answer_whose_words_the_model_chose(client):
    options = {"model": "sure", "confidence": True, "glossary": {"house": "dog"}, "max_tokens": 12}
    with pytest.raises(ClientError, match=r"include_confidence: must be false with a glossary"):
        client.translate("the small red house", **options)
    answer = client.translate("the small red house", beam_size=2, **options)
    assert (answer.glossary.met, answer.confidence.calibrated) == (1, False)


def test_a_glossary_of_the_server_is_read_anew_when_it_changes(client, server, terms):
    options = {"model": "aligned", "glossary": "estate", "max_tokens": 16}
    assert "garden" in client.translate(TEXTS[0], **options).text.split()
    terms.write_text("red house\n")
    refused = server.wait_for("refused_files")
    assert "line 1" in refused["reason"]
    assert "garden" in client.translate(TEXTS[0], **options).text.split()
    terms.write_text("red house\tbirds\n# changed\n")
    server.wait_for("read_files")
    assert "birds" in client.translate(TEXTS[0], **options).text.split()


def test_the_program_of_the_page_runs(server, capsys):
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    program = program.replace("localhost:50051", server.address).replace("markup=[", 'model="aligned", markup=[')
    exec(compile(program, "docs/markup.md", "exec"), {})
    text, placed, terms = capsys.readouterr().out.splitlines()
    assert sorted(TAG.findall(text)) == ["</b>", "<b>", "{place}"]
    assert placed.startswith("alignment ")
    assert terms == "1 of 1 ()"


def test_a_stream_rejects_marks(server):
    with grpc.insecure_channel(server.address) as channel:
        request = pb.StreamTranslateRequest(model="aligned", text=TEXTS[0], markup=pb.Markup(tags=True))
        with pytest.raises(grpc.RpcError) as caught:
            list(pb_grpc.TranslationServiceStub(channel).StreamTranslate(request))
    assert "call Translate" in str(caught.value.details())
