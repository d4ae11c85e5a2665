import re
from xml.etree import ElementTree

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from service.text.inline_markup import extract
from service.text.mark_placement import Links
from service.text.mark_scanner import Kinds
from service.text.words import words

ALL = Kinds(tags=True, placeholders=True, urls=True, numbers=True)
TAGS = Kinds(tags=True)
PLACEHOLDERS = Kinds(placeholders=True)
POINTS = ("{name}", "{0}", "%(a)s", "<br/>", "<img src='a>b'/>")
APART = ("%s", "%1$s", "https://a.example/x?y=z", "ab@c.example", "47,11")  # no marks within a word
TOKENS = (
    "Haus",
    "a",
    "é",
    "e\u0301",
    "don't",
    "rock-n-roll",
    "\u4f60",
    "\u597d",
    "&",
    "<",
    ">",
    ",",
    ".",
    "(",
    ")",
    '"',
    "«",
    "-",
    "…",
    "🙂",
)
BLANKS = (" ", " ", " ", "\n", "  ", "\u00a0", "")


def texts(least=0):
    """Words, punctuation and white space of all kinds, without anything that is a mark."""
    parts = st.lists(st.tuples(st.sampled_from(TOKENS), st.sampled_from(BLANKS)), min_size=least, max_size=12)
    return st.tuples(st.sampled_from(BLANKS), parts).map(lambda both: both[0] + "".join(map("".join, both[1])))


def translations():
    """Texts as models return them, without white space at their ends. After a character of a script without blanks a
    URL or a number would run into it, so there is none of these here."""
    return texts().map(lambda text: re.sub("[\u4f60\u597d]", "b", text).strip())


@st.composite
def marked(draw, depth=0):
    """A raw text with tags in pairs and points; each mark is different, so that it can be found again."""
    parts = []
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(("text", "text", "point", "element") if depth < 3 else ("text", "point")))
        if kind == "text":
            parts.append(draw(texts()).replace("&", "&amp;").replace("<", "&lt;"))
        elif kind == "point":
            blanks = st.sampled_from(BLANKS)
            apart = st.sampled_from(APART).map(lambda point: f" {point} ")
            parts.append(draw(blanks) + draw(st.one_of(st.sampled_from(POINTS), apart)) + draw(blanks))
        else:
            name = draw(st.sampled_from(("b", "i", "a href='/x'")))
            parts.append(f"<{name}>{draw(marked(depth + 1))}</{name[0]}>")
    return "".join(parts)


def links_between(plain, translation, draw):
    """Random links of words, with weights that sum to 1 for each word of the translation."""
    source, target = words(plain), words(translation)
    values = draw(st.lists(st.floats(0, 1), min_size=(size := len(source) * len(target)), max_size=size))
    return Links(source, target, np.asarray(values, np.float32).reshape(len(target), len(source)))


def found(raw):
    """How often a text has each mark."""
    marks = re.findall(
        r"<img src='a>b'/>|<[^>]+>|\{\w+\}|%\(a\)s|%\w+(?:\$s)?|https?://[\w./?=]+|ab@c\.example|47,11", raw
    )
    return sorted(marks)


@settings(max_examples=50)
@given(marked(), translations(), st.data())
def test_every_mark_is_restored_once_and_taking_them_out_returns_the_translation(raw, translation, data):
    text = extract(raw, ALL)
    links = links_between(text.plain, translation, data.draw) if data.draw(st.booleans()) else None
    restored = text.restored(translation, links)
    assert found(restored) == found(raw), restored
    assert extract(restored, ALL).plain == translation, restored
    ElementTree.fromstring(f"<all>{restored}</all>")


def ancestors(raw):
    """Each tag with the tags that it lies in."""
    lies_in = []

    def walk(element, above):
        lies_in.append((element.tag, above))
        for child in element:
            walk(child, (*above, element.tag))

    walk(ElementTree.fromstring(f"<all>{raw}</all>"), ())
    return sorted(lies_in)


@settings(max_examples=50)
@given(marked(), translations(), st.data())
def test_marks_stay_in_the_elements_that_they_are_in(raw, translation, data):
    text = extract(raw, ALL)
    restored = text.restored(translation, links_between(text.plain, translation, data.draw))
    assert ancestors(restored) == ancestors(raw), restored


@settings(max_examples=50)
@given(marked(), translations(), st.data())
def test_no_tag_stands_within_a_word(raw, translation, data):
    text = extract(raw, TAGS)
    restored = text.restored(translation, links_between(text.plain, translation, data.draw))
    borders = {place for span in words(translation) for place in span} | {0, len(translation)}
    pieces = re.split(r"<img src='a>b'/>|<[^>]+>", restored)
    decoded = [piece.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&") for piece in pieces]
    bare = "".join(decoded)
    borders = {place for span in words(bare) for place in span} | {0, len(bare)}
    places = np.cumsum([len(piece) for piece in decoded[:-1]]).tolist()
    assert all(place in borders or bare[place - 1].isspace() or bare[place].isspace() for place in places), restored


@settings(max_examples=100)
@given(marked(), st.lists(translations(), min_size=3, max_size=3), st.data())
def test_three_fragments_of_a_text_have_its_marks_together(raw, translated, data):
    blanks = [match.end() for match in re.finditer(r" (?=[^<>{}%']*(?:<|$))", raw)]
    cuts = sorted(data.draw(st.lists(st.sampled_from([0, *blanks]), min_size=2, max_size=2)))
    parts = [raw[: cuts[0]], raw[cuts[0] : cuts[1]], raw[cuts[1] :]]
    restored = []
    for part, text in zip((extract(part, ALL, lenient=True) for part in parts), translated, strict=True):
        restored.append(part.restored(text, links_between(part.plain, text, data.draw)))
    assert found("".join(restored)) == found(raw), restored
    ElementTree.fromstring(f"<all>{''.join(restored)}</all>")
