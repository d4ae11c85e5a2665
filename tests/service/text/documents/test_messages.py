import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.text.documents.xliff import segments
from service.text.inline_markup import extract
from service.text.mark_scanner import Kinds
from service.text.segmentation import Splitter

FILE = (
    '<xliff version="1.2"><file source-language="en"><trans-unit id="1"><source>{}</source></trans-unit></file></xliff>'
)


def target_of(source, translate=str.upper):
    """The target of a unit with this source, whose words `translate` has changed, and the texts."""
    made, texts = "", list[str]()
    for segment in segments(FILE.format(source), Splitter("en")):
        parts = list[str]()
        for part in segment.parts:
            if isinstance(part, str):
                parts.append(part)
                continue
            marked = extract(part.text, Kinds(tags=part.has_tags, placeholders=True))
            texts.append(marked.plain)
            parts.append(part.written(marked.restored(translate(marked.plain))))
        made += (segment.joined or "".join)(parts)
    found = re.search("<target[^>]*>(.*)</target>", made, re.DOTALL)
    return found[1] if found else "", texts


@pytest.mark.parametrize(
    ("source", "texts", "target"),
    [
        (
            "{n, plural, one {# red file} other {# files}}",
            ["red file", "files"],
            "{n, plural, one {# RED FILE} other {# FILES}}",
        ),
        (
            "You have {n, plural, offset:1 =0 {no file} other {# files}} left.",
            ["You have left.", "no file", "files"],
            "YOU HAVE {n, plural, offset:1 =0 {NO FILE} other {# FILES}} LEFT.",
        ),
        (
            "{g, select, female {She has {n, plural, one {a dog} other {# dogs}}} other {They}}",
            ["She has", "a dog", "dogs", "They"],
            "{g, select, female {SHE HAS {n, plural, one {A DOG} other {# DOGS}}} other {THEY}}",
        ),
        (
            "{n, selectordinal, one {the #st day} other {the #th {name}}}",
            ["the st day", "the th"],
            "{n, selectordinal, one {THE #ST DAY} other {THE #TH {name}}}",
        ),
        (
            "{VAR, plural, =1 {one <g id='1'>red</g> minute} other {<x id='I'/> minutes} }",
            ["one red minute", "minutes"],
            "{VAR, plural, =1 {ONE <g id='1'>RED</g> MINUTE} other {<x id='I'/> MINUTES} }",
        ),
        (
            "{n, plural, one {It''s {d, date, short} '{'here'}'} other {x}}. Don''t go.",
            ["It's here", "x", "Don't go."],
            "{n, plural, one {IT''S {d, date, short} '{'HERE'}'} other {X}}. DON''T GO.",
        ),
        ("{n, plural, one {a dog} other {dogs}", ["{n, plural, one {a dog} other"], None),
        ("Hello {name}, {0} of %1$s", ["Hello, of"], "HELLO {name}, {0} OF %1$s"),
    ],
)
def test_branches_of_a_message_are_translated_and_all_else_is_kept(source, texts, target):
    found = target_of(source)
    assert found[1] == texts
    assert target is None or found[0] == target


def test_an_apostrophe_of_an_answer_begins_no_quotation():
    assert target_of("{n, plural, other {x # y}}", lambda _: "l'")[0] == "{n, plural, other {l #''}}"
    assert target_of("{n, plural, other {x}}", lambda _: "it's")[0] == "{n, plural, other {it's}}"
    assert target_of("{n, plural, other {it''s}}", lambda text: text)[0] == "{n, plural, other {it''s}}"


PIECES = (
    "{n, plural, one {",
    "} other {",
    "}}",
    "{",
    "}",
    "'",
    "''",
    "#",
    "a b",
    " ",
    "{x}",
    "<x id='1'/>",
    "<g id='2'>c</g>",
)


@settings(max_examples=300)
@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
def test_a_message_translated_into_itself_is_the_same(source):
    segments_of = segments(FILE.format(source), Splitter("en"))
    made = "".join(
        (one.joined or "".join)([part if isinstance(part, str) else part.written(part.text) for part in one.parts])
        for one in segments_of
    )
    found = re.search("<target[^>]*>(.*)</target>", made, re.DOTALL)
    assert not found or " ".join(found[1].split()) == " ".join(source.split())
