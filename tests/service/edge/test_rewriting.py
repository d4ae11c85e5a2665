"""Marks and terms around a translation: what engines get, and what becomes of their answers."""

import asyncio
import dataclasses

import numpy as np
import pytest

from export.manifest import AlignmentSpec
from glossa.v1 import glossa_pb2 as pb
from service.edge.glossaries import Glossaries
from service.errors import InvalidRequest, StartupError
from service.request import Finished
from service.text.glossary import Glossary
from tests.edge import ANSWER, RESULT, TOKENIZERS, FakePool, answered, failure, manifest, method, served

TEXT = "the small red house"
MARKED = "the <b>small</b> red {x} house"
TAGS = pb.Markup(tags=True, placeholders=True)


def glossary(**terms):
    return pb.Glossary(terms=[pb.GlossaryTerm(source=source, targets=targets) for source, targets in terms.items()])


@pytest.fixture
def aligned(edge):
    """The pool of a model `aligned`, whose bundle has an alignment."""
    pool = FakePool()
    spec = AlignmentSpec(layers=1, heads=1, default_layer=1)
    model = dataclasses.replace(served("aligned", pool), manifest=manifest(alignment=spec))
    edge.server.metrics.model(model.name).describe(model.manifest, model.choice)
    edge.server._catalog.add(model)
    return pool


def result(text, *sources):
    """An answer of which word t is linked to word sources[t] of the text, and the end token to the end token."""
    tokens = (*TOKENIZERS["translation"].encode(text), 2)
    weights = np.zeros((1, 1, len(tokens), 5), np.float32)
    weights[0, 0, range(len(tokens)), (*sources, 4)] = 1
    return dataclasses.replace(RESULT, text=text, tokens=tokens, attention=weights)


async def test_a_request_without_marks_asks_for_nothing_more(edge, aligned, channel):
    response = await method(channel, "Translate")(model="aligned", text=TEXT)
    assert (response.HasField("markup"), response.HasField("glossary")) == (False, False)
    assert aligned.requests[0].options.alignment == "none"


async def test_marks_follow_the_alignment(aligned, channel):
    aligned.answer = answered(result("zwei rote Häuser", 1, 0, 3))
    response = await method(channel, "Translate")(model="aligned", text=MARKED, markup=TAGS)
    (request,) = aligned.requests
    assert (len(request.source), request.options.alignment) == (5, "hard")
    assert response.text == "<b>zwei</b> rote {x} Häuser"
    assert (response.markup.source_text, response.markup.plain_text) == (TEXT, "zwei rote Häuser")
    assert response.markup.placement == pb.MARK_PLACEMENT_ALIGNMENT
    assert list(response.hypotheses) == []


async def test_without_an_alignment_marks_are_placed_in_proportion(edge, channel):
    response = await method(channel, "Translate")(model="en-de", text=MARKED, markup=TAGS)
    assert edge.pool.requests[0].options.alignment == "none"
    assert response.markup.placement == pb.MARK_PLACEMENT_PROPORTIONAL
    assert response.text.replace("<b>", "").replace("</b>", "").replace("{x} ", "") == "zwei rote Häuser"


async def test_every_hypothesis_has_the_marks(edge, channel):
    edge.pool.answer = answered(RESULT, dataclasses.replace(RESULT, text="zwei Häuser"))
    options = pb.DecodingOptions(beam_size=2, num_hypotheses=2)
    response = await method(channel, "Translate")(text="the {x} red house", markup=TAGS, options=options)
    assert [hypothesis.plain_text for hypothesis in response.hypotheses] == ["zwei rote Häuser", "zwei Häuser"]
    assert all(hypothesis.text.count("{x}") == 1 for hypothesis in response.hypotheses)
    assert response.text == response.hypotheses[0].text


async def test_a_missing_term_replaces_the_words_aligned_with_it(aligned, channel):
    aligned.answer = answered(result("zwei rote Häuser", 1, 2, 3))
    terms = glossary(house=["Schloss"], red=["rot", "rote"], cat=["Katze"])
    raw = "the small red <b>house</b>"
    response = await method(channel, "Translate")(model="aligned", text=raw, markup=TAGS, glossary=terms)
    assert response.text == "zwei rote <b>Schloss</b>"
    assert response.markup.plain_text == "zwei rote Schloss"
    assert (response.glossary.terms, response.glossary.met, list(response.glossary.unmet)) == (2, 2, [])
    assert len(aligned.requests) == 1


async def test_a_term_never_replaces_a_form_of_another_one(aligned, channel):
    aligned.answer = answered(result("zwei rote Häuser", 0, 1, 3))
    terms = glossary(small=["kleines"], red=["rote"])
    response = await method(channel, "Translate")(model="aligned", text=TEXT, glossary=terms)
    assert response.text == "zwei rote Häuser"
    assert (response.glossary.met, list(response.glossary.unmet)) == (1, ["small"])


async def test_spans_of_an_alignment_follow_the_terms(aligned, channel):
    aligned.answer = answered(result("zwei rote Häuser", 0, 1, 3))
    options = pb.DecodingOptions(alignment=pb.ALIGNMENT_KIND_HARD)
    fields = {"model": "aligned", "text": TEXT, "options": options}
    response = await method(channel, "Translate")(glossary=glossary(red=["dunkelrote", "x"]), **fields)
    (hypothesis,) = response.hypotheses
    spans = [(span.start, span.end) for span in hypothesis.alignment.target_spans]
    pieces = [response.text[start:end].strip() for start, end in spans if start < end]
    assert " ".join(pieces) == response.text == hypothesis.plain_text == "dunkelrote rote Häuser", pieces


async def test_without_an_alignment_a_missing_term_is_unmet(edge, channel):
    response = await method(channel, "Translate")(text=TEXT, glossary=glossary(house=["Schloss"]))
    assert response.text == "zwei rote Häuser"
    assert (response.glossary.met, list(response.glossary.unmet)) == (0, ["house"])


async def test_a_beam_searches_once_more_for_missing_terms(edge, channel):
    edge.pool.hold = True
    terms, options = glossary(house=["schwarz"], red=["rote"]), pb.DecodingOptions(beam_size=2)
    call = method(channel, "Translate")(text=TEXT, glossary=terms, options=options)
    running = asyncio.ensure_future(call)
    await edge.pool.until(lambda: len(edge.pool.requests) == 1)
    assert edge.pool.requests[0].options.phrases == ()
    edge.pool.send(edge.pool.sinks[0], ANSWER)
    await edge.pool.until(lambda: len(edge.pool.requests) == 2)
    assert edge.pool.requests[1].options.phrases == ("schwarz", "rote")
    edge.pool.send(edge.pool.sinks[1], answered(dataclasses.replace(RESULT, text="zwei rote schwarz")))
    response = await running
    assert (response.text, response.glossary.met) == ("zwei rote schwarz", 2)
    first = next(event for event in ANSWER if isinstance(event, Finished))
    assert response.usage.generated_tokens == first.generated_tokens
    assert response.timings.total.ToTimedelta().total_seconds() == pytest.approx(2 * first.timings.total_s)


async def test_a_beam_that_has_all_terms_searches_once(edge, channel):
    options = pb.DecodingOptions(beam_size=2)
    response = await method(channel, "Translate")(text=TEXT, glossary=glossary(red=["rote"]), options=options)
    assert (response.glossary.met, len(edge.pool.requests)) == (1, 1)


async def test_phrases_that_cannot_be_forced_leave_the_first_answer(edge, channel):
    edge.pool.hold = True
    call = method(channel, "Translate")(
        text=TEXT, glossary=glossary(house=["schwarz"]), options=pb.DecodingOptions(beam_size=2)
    )
    running = asyncio.ensure_future(call)
    await edge.pool.until(lambda: len(edge.pool.requests) == 1)
    edge.pool.send(edge.pool.sinks[0], ANSWER)
    await edge.pool.until(lambda: len(edge.pool.requests) == 2)
    edge.pool.send(edge.pool.sinks[1], (InvalidRequest("options.phrases[0]", "is no text of this vocabulary"),))
    response = await running
    assert (response.text, list(response.glossary.unmet)) == ("zwei rote Häuser", ["house"])


async def test_a_text_that_is_too_long_is_refused_before_its_terms_are_looked_for(edge, channel, monkeypatch):
    monkeypatch.setattr(Glossary, "occurrences", lambda *_: pytest.fail("looked for terms"))
    error, details = await failure(method(channel, "Translate")(text="red " * 500, glossary=glossary(red=["rot"])))
    assert details["BadRequest"].field_violations[0].field == "text"
    assert "must be at most" in error.details()


@pytest.mark.parametrize(
    ("fields", "field", "expected"),
    [
        ({"markup": pb.Markup()}, "markup", "at least one of tags, placeholders, urls, numbers"),
        ({"text": "the <b>house", "markup": TAGS}, "text", "<b> at character 5 is not closed"),
        ({"text": "{x} {y}", "markup": TAGS}, "text", "words beside its marks"),
        ({"text": " ", "markup": TAGS}, "text", "must not be empty or blank"),
        ({"glossary": pb.Glossary()}, "glossary", "must have terms, or the name"),
        ({"glossary": pb.Glossary(name="x")}, "glossary.name", "no glossary 'x'; the server has none"),
        ({"glossary": glossary(a=["b"], c=[" d"])}, "glossary.terms[1].targets[0]", "without blanks"),
    ],
)
async def test_what_cannot_be_used_is_rejected(edge, channel, fields, field, expected):
    error, details = await failure(method(channel, "Translate")(**{"text": TEXT, **fields}))
    assert error.code().name == "INVALID_ARGUMENT"
    assert details["BadRequest"].field_violations[0].field == field
    assert expected in details["BadRequest"].field_violations[0].description
    assert edge.pool.requests == []


@pytest.mark.parametrize("field", ["markup", "glossary"])
async def test_streams_reject_what_may_change_text_that_was_sent(edge, channel, field):
    fields = {"markup": TAGS, "glossary": glossary(a=["b"])}
    error, details = await failure(method(channel, "StreamTranslate")(text=TEXT, **{field: fields[field]}))
    assert error.code().name == "INVALID_ARGUMENT"
    assert details["BadRequest"].field_violations[0].field == field
    assert "call Translate" in error.details()


def test_named_glossaries_are_read_and_completed_by_terms_of_the_request(tmp_path):
    file = tmp_path / "terms.tsv"
    file.write_text("house\tHaus\nred\trot\n")
    glossaries = Glossaries({"estate": file})
    found = glossaries.of(pb.Glossary(name="estate", terms=[pb.GlossaryTerm(source="red", targets=["rote"])]))
    assert [one.term.targets for one in found.occurrences("a red house")] == [("rote",), ("Haus",)]
    with pytest.raises(InvalidRequest, match="no glossary 'x'; known: estate"):
        glossaries.of(pb.Glossary(name="x"))
    file.write_text("house\tGebäude\n# more\n")
    assert glossaries._watched.refresh() is True
    (house,) = glossaries.of(pb.Glossary(name="estate")).occurrences("a red house")
    assert house.term.targets == ("Gebäude",)


@pytest.mark.parametrize("written", ["house Haus\n", "a\tb\na\tc\n"])
def test_a_glossary_that_cannot_be_read_keeps_the_server_from_starting(tmp_path, written):
    file = tmp_path / "terms.tsv"
    file.write_text(written)
    with pytest.raises(StartupError, match=r"glossaries: estate: .*line [12]"):
        Glossaries({"estate": file})
    with pytest.raises(StartupError, match="glossaries: estate"):
        Glossaries({"estate": tmp_path / "nowhere"})


async def test_of_the_words_of_a_missing_term_those_of_another_one_stay(aligned, channel):
    aligned.answer = answered(result("zwei rote Häuser", 3, 3, 3))
    terms = glossary(house=["Schloss"], red=["rote"])
    response = await method(channel, "Translate")(model="aligned", text=TEXT, glossary=terms)
    assert response.text == "Schloss rote Häuser"
    assert (response.glossary.met, response.glossary.terms) == (2, 2)
