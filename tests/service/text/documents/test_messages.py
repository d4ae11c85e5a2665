import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.text.documents.plural_categories import lacking
from service.text.documents.xliff import segments
from service.text.inline_markup import extract
from service.text.languages import Languages
from service.text.mark_scanner import Kinds
from service.text.segmentation import Splitter

FILE = (
    '<xliff version="1.2"><file source-language="en"><trans-unit id="1"><source>{}</source></trans-unit></file></xliff>'
)


def target_of(source, translate=str.upper, language=""):
    """The target of a unit with this source, whose words `translate` has changed, and the texts."""
    made, texts = "", list[str]()
    for segment in segments(FILE.format(source), Splitter("en"), Languages("en", language)):
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
        ("Hello {name}, {0} of %1$s", ["Hello, of"], "HELLO {name}, {0} OF %1$s"),
    ],
)
def test_branches_of_a_message_are_translated_and_all_else_is_kept(source, texts, target):
    assert target_of(source) == (target, texts)


@pytest.mark.parametrize(
    ("language", "source", "target"),
    [
        ("pl", "{n, plural, one {a} other {# b}}", "{n, plural, one {A} few {# B} many {# B} other {# B}}"),
        ("rus_Cyrl", "{n, plural, =1{a} other{b}}", "{n, plural, =1{A} one{B} few{B} many{B} other{B}}"),
        ("ar-EG", "{n, plural, =0 {a} =1 {b} =2 {c} other {d}}", "=0 {A} =1 {B} =2 {C} few {D} many {D} other {D}}"),
        ("cs", "{n, plural, other {d} =1 {b}}", "{n, plural, few {D} many {D} other {D} =1 {B}}"),
        ("sl", "{n, plural, few {c} other {d}}", "{n, plural, one {D} two {D} few {C} other {D}}"),
        ("fr", "{n, plural, one {a} other {b}}", "{n, plural, one {A} many {B} other {B}}"),
        ("ja", "{n, plural, one {a} other {b}}", "{n, plural, one {A} other {B}}"),
        ("de", "{n, plural, one {a} other {b}}", "{n, plural, one {A} other {B}}"),
        ("tlh", "{n, plural, one {a} other {b}}", "{n, plural, one {A} other {B}}"),
        ("pl", "{n, plural, one {a}}", "{n, plural, one {A}}"),
        ("pl", "{g, select, female {a} other {b}}", "{g, select, female {A} other {B}}"),
        ("it", "{n, selectordinal, one {#st} other {the #th}}", "one {#ST} many {THE #TH} other {THE #TH}}"),
        ("pl", "{n, selectordinal, one {#st} other {#th}}", "{n, selectordinal, one {#ST} other {#TH}}"),
        ("sr", "{n, plural,\n  one {a}\n  other {b}\n}", "{n, plural,\n  one {A}\n  few {B}\n  other {B}\n}"),
        (
            "hr",
            "Take {n, plural, one {it} other {<x id='1'/> of '{'{v}'}' &amp; us}} now",
            "TAKE {n, plural, one {IT} few {<x id='1'/> OF '{'{v}'}' &amp; US} other "
            "{<x id='1'/> OF '{'{v}'}' &amp; US}} NOW",
        ),
        (
            "sr",
            "{n, plural, one {a} other {b {m, plural, one {c} other {d}}}}",
            "{n, plural, one {A} few {B {m, plural, one {C} few {D} other {D}}} "
            "other {B {m, plural, one {C} few {D} other {D}}}}",
        ),
    ],
)
def test_categories_that_the_targets_language_needs_are_added(language, source, target):
    assert target_of(source, language=language)[0].endswith(target)


def test_the_document_names_the_language_where_the_request_does_not():
    source = "<source>{n, plural, one {a} other {b}}</source>"
    of_file = '<file source-language="en" target-language="LANGUAGE">' + f"<trans-unit>{source}</trans-unit></file>"
    version_1 = '<xliff version="1.2">' + of_file.replace("LANGUAGE", "hr") + of_file.replace("LANGUAGE", "de")
    unit = f"<file><unit><segment>{source}</segment></unit></file>"
    version_2 = f'<xliff version="2.0" srcLang="en" trgLang="hr">{unit}'
    for file, language, count in ((version_1, "", 1), (version_1, "hr", 2), (version_2, "", 1), (version_2, "de", 0)):
        found = segments(f"{file}</xliff>", Splitter("en"), Languages("en", language))
        assert [part for one in found for part in one.parts].count("few {") == count


def test_selectors_of_one_number_stand_for_its_category():
    assert lacking("plural", "cy", ["=3", "=6", "other"]) == ["zero", "one", "two"]
    assert lacking("plural", "ru", ["=1", "other"]) == ["one", "few", "many"], "one is also 21"
    assert lacking("select", "ru", ["other"]) == lacking("plural", "", ["other"]) == []


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("{n, plural, one {a dog} other {dogs}", "its braces do not match near '{n, plural, one {a d'"),
        ("{n, plural, one {a dog} other {dogs", "near ', one {a dog} other {dogs'"),
        ("{n, plural, one {a dog} other dogs}", "its braces do not match"),
        ("{n, plural, one {a dog}} other {dogs}}", "near 'a dog}} other {dogs}}'"),
        ("{n, plural one {a dog} other {dogs}}", "its braces do not match"),
        ("{n,select,a{b}other{c}", "its braces do not match"),
        ("{n, plural, one {a '{dog} other {dogs}}", "its braces do not match"),
        ("{n, plural, one {<x id='1'/> dog} other {dogs}", "its braces do not match"),
        ("Take {n, selectordinal, other {#th}} and {", "near 'l, other {#th}} and {'"),
        ("<![CDATA[{n, plural, one {a dog} other {dogs}}]]>", "no part of the message '{n, plural' in a CDATA section"),
        ("{n, plural, other {a <![CDATA[{b} c]]>}}", "no part of the message '{n, plural' in a CDATA section"),
        ("{a, plural, other {b" * 9 + "}}" * 9, "at most 8 arguments in each other"),
    ],
)
def test_a_malformed_message_fails_and_stays(source, problem):
    file = FILE.format(source)
    found = [one for one in segments(file, Splitter("en")) if not one.is_copied]
    assert [one.parts for one in found] == [(f"<source>{source}</source>",)]
    assert problem in found[0].problem


def test_added_branches_in_each_other_are_bounded():
    source = "x"
    for _ in range(8):
        source = f"{{n, plural, one {{a}} other {{{source}}}}}"
    (failed,) = (one for one in segments(FILE.format(source), Splitter("en"), Languages("en", "ar")) if one.problem)
    assert "must lack at most 200 branches" in failed.problem


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
