"""Marks and terms around a translation: what engines get, and what becomes of their answers."""

import asyncio
import dataclasses

import numpy as np
import pytest

from export.bundle.manifest import AlignmentSpec
from glossa.v1 import glossa_pb2 as pb
from service.edge.requests import request_limits
from service.edge.requests.glossaries import Glossaries
from service.errors import InvalidRequest, Overloaded, StartupError, Unsatisfiable
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
    edge.server.metrics.model(model.name).open(model.version).describe(model.manifest, model.choice)
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


@pytest.mark.parametrize("beam", [1, 2])
async def test_marks_are_placed_in_proportion_if_the_alignment_would_be_too_large(aligned, channel, monkeypatch, beam):
    monkeypatch.setattr(request_limits, "MAX_ATTENTION_BYTES", 4 * 16 * 5 - 1)  # of 16 tokens and 5 source positions
    options = pb.DecodingOptions(beam_size=beam)
    fields = {"model": "aligned", "text": MARKED, "markup": TAGS, "glossary": glossary(house=["black"])}
    response = await method(channel, "Translate")(options=options, **fields)
    assert [request.options.alignment for request in aligned.requests] == ["none"] * beam  # of a beam a second search
    assert response.markup.placement == pb.MARK_PLACEMENT_PROPORTIONAL
    assert list(response.glossary.unmet) == ["house"]
    options.alignment = pb.ALIGNMENT_KIND_HARD
    _, details = await failure(method(channel, "Translate")(options=options, **fields))
    assert details["BadRequest"].field_violations[0].field == "options.alignment"


async def test_without_an_alignment_marks_are_placed_in_proportion(edge, channel):
    response = await method(channel, "Translate")(model="en-de", text=MARKED, markup=TAGS)
    assert edge.pool.requests[0].options.alignment == "none"
    assert response.markup.placement == pb.MARK_PLACEMENT_PROPORTIONAL
    assert response.text.replace("<b>", "").replace("</b>", "").replace("{x} ", "") == "zwei rote Häuser"


async def test_a_text_without_marks_has_no_placement(aligned, channel):
    response = await method(channel, "Translate")(model="aligned", text=TEXT.replace("e", "&#101;"), markup=TAGS)
    assert response.markup.placement == pb.MARK_PLACEMENT_UNSPECIFIED
    assert response.markup.source_text == TEXT


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
    terms, options = glossary(house=["black"], red=["rote"]), pb.DecodingOptions(beam_size=2)
    call = method(channel, "Translate")(text=TEXT, glossary=terms, options=options)
    running = asyncio.ensure_future(call)
    await edge.pool.until(lambda: len(edge.pool.requests) == 1)
    assert edge.pool.requests[0].options.phrases == ()
    edge.pool.send(edge.pool.sinks[0], ANSWER)
    await edge.pool.until(lambda: len(edge.pool.requests) == 2)
    assert edge.pool.requests[1].options.phrases == ("black", "rote")
    edge.pool.send(edge.pool.sinks[1], answered(dataclasses.replace(RESULT, text="zwei rote black")))
    response = await running
    assert (response.text, response.glossary.met) == ("zwei rote black", 2)
    first = next(event for event in ANSWER if isinstance(event, Finished))
    assert response.usage.generated_tokens == first.generated_tokens
    assert response.timings.total.ToTimedelta().total_seconds() == pytest.approx(2 * first.timings.total_s)


async def test_terms_are_counted_with_those_that_are_met(edge, channel):
    registry = edge.server.metrics.registry

    def counted():
        labels = {"model": "en-de", "version": edge.models["en-de"].version}
        names = ("glossa_glossary_terms_total", "glossa_glossary_terms_met_total")
        return [registry.get_sample_value(name, labels) for name in names]

    await method(channel, "Translate")(text=TEXT, markup=TAGS)
    assert counted() == [0, 0]
    await method(channel, "Translate")(text=TEXT, glossary=glossary(red=["rote"], house=["Haus"], cat=["Katze"]))
    assert counted() == [2, 1]
    documents = method(channel, "TranslateDocument")
    message = pb.TranslateDocumentRequest(text=f"{TEXT}\n\n{TEXT}", glossary=glossary(red=["rote"]))
    async for _ in documents(iter([message])):
        pass
    assert counted() == [4, 3]


async def test_a_beam_that_has_all_terms_searches_once(edge, channel):
    options = pb.DecodingOptions(beam_size=2)
    response = await method(channel, "Translate")(text=TEXT, glossary=glossary(red=["rote"]), options=options)
    assert (response.glossary.met, len(edge.pool.requests)) == (1, 1)


TOO_LONG = InvalidRequest("options.phrases", "must need at most 16 tokens")


async def searched(edge, channel, terms, *ends, **options):
    """The response of a beam whose searches after the first end so, and the phrases of each search."""
    edge.pool.hold = True
    call = method(channel, "Translate")(
        text=TEXT, glossary=terms, options=pb.DecodingOptions(**{"beam_size": 2, **options})
    )
    running = asyncio.ensure_future(call)
    for number, end in enumerate((ANSWER, *ends)):
        await edge.pool.until(lambda number=number: len(edge.pool.requests) > number)
        edge.pool.send(edge.pool.sinks[number], end if isinstance(end, tuple) else (end,))
    response = await running
    assert len(edge.pool.requests) == 1 + len(ends)
    return response, [request.options.phrases for request in edge.pool.requests]


def found(text):
    return answered(dataclasses.replace(RESULT, text=text))


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("options.phrases[0]", "is no text of this vocabulary"),
        InvalidRequest("options.stop", "?"),
        TOO_LONG,
        Unsatisfiable("no token is left"),
        Overloaded("the queue is full", retry_after_s=1, limit=1),
    ],
)
async def test_phrases_that_cannot_be_forced_leave_the_first_answer(edge, channel, error):
    response, _ = await searched(edge, channel, glossary(house=["black"]), error)
    assert (response.text, list(response.glossary.unmet)) == ("zwei rote Häuser", ["house"])


@pytest.mark.parametrize(
    ("errors", "last", "unmet"),
    [
        ([InvalidRequest("options.phrases[0]", "?")], ("cat", "a", "rote"), ["the"]),
        ([TOO_LONG], ("black", "cat", "a"), []),
        ([TOO_LONG, TOO_LONG], ("black", "a"), ["house"]),
        ([Unsatisfiable("?")], ("black", "a"), ["house"]),
        ([Unsatisfiable("?"), TOO_LONG], ("black",), ["small", "house"]),
    ],
)
async def test_terms_that_can_be_forced_are_without_those_that_cannot(edge, channel, errors, last, unmet):
    terms = glossary(the=["black"], small=["a"], red=["rote"], house=["cat"])
    response, searches = await searched(edge, channel, terms, *errors, found(" ".join((*last, "rote"))))
    assert searches[1] == ("black", "a", "cat", "rote")
    assert set(searches[-1]) == set(last), searches
    assert list(response.glossary.unmet) == unmet


@pytest.mark.parametrize(
    ("options", "targets", "phrases"),
    [
        ({}, ["Schornsteinfeger", "cat"], ("cat", "a", "rote")),
        ({"bad_words": ["blac"]}, ["black", "cat"], ("cat", "a", "rote")),
        ({"stop": ["lack"]}, ["black"], ("a", "rote")),
        ({"allowed_tokens": [4, 5, *TOKENIZERS["translation"].encode("a rote cat")]}, ["black"], ("a", "rote")),
        ({"phrases": ["zwei", "rote"]}, ["black"], ("zwei", "rote", "black", "a")),
        ({"phrases": ["zwei"], "ordered_phrases": True}, ["black"], ("zwei", "black", "a", "rote")),
        ({"phrases": ["the"] * 15}, ["black"], ("the",) * 15 + ("black",)),
        ({"phrases": ["cat"]}, ["cat", "black"], ("cat", "black", "a", "rote")),
    ],
)
async def test_phrases_for_terms_go_with_the_options(edge, channel, options, targets, phrases):
    terms = glossary(small=targets, house=["a"], red=["rote"])
    response, searches = await searched(edge, channel, terms, found(" ".join(phrases)), **options)
    assert searches[1] == phrases
    assert edge.pool.requests[1].options.ordered_phrases is False
    assert response.glossary.met == sum(any(form in phrases for form in one.targets) for one in terms.terms), (
        response.glossary
    )


@pytest.mark.parametrize(
    ("options", "targets"),
    [
        ({"phrases": ["zwei", "rote"], "ordered_phrases": True}, ["black"]),
        ({"phrases": ["a"] * 16}, ["black"]),
        ({"bad_words": ["blac"]}, ["black", "Schornsteinfeger"]),
    ],
)
async def test_without_a_form_that_can_be_forced_there_is_no_second_search(edge, channel, options, targets):
    response, _ = await searched(edge, channel, glossary(small=targets), **options)
    assert (response.text, list(response.glossary.unmet)) == ("zwei rote Häuser", ["small"])


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
