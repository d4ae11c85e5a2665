import time

import pytest

from service.text.inline_markup import extract
from service.text.mark_scanner import Kinds, decoded, encoded, scan

ALL = Kinds(tags=True, placeholders=True, urls=True, numbers=True)


def found(raw, kinds=ALL):
    return [raw[mark.start : mark.end] for mark in scan(raw, kinds)]


@pytest.mark.parametrize(
    ("kind", "marks"),
    [
        (
            "tags",
            ["<b>", "</b>", "<br/>", "<br />", "<a href='x>y' b=1 c>", '<x:y z="{a}">', "<!-- <b> -->", "<?php ?>"],
        ),
        ("placeholders", ["{name}", "{0}", "{}", "{a.b[0]}", "{n:.2f}", "{n!r}", "{{name}}", "{{ a b }}", "{{{raw}}}"]),
        ("placeholders", ["${name}", "%s", "%d", "%1$s", "%(name)s", "%-5.2f", "%ld", "%@", "%*d", "%(a)02d"]),
        ("urls", ["http://a.de", "https://a.de/b?c=d&e=(f)#g", "HTTPS://A.de", "first.last+tag@mail.example.org"]),
        ("numbers", ["1", "-5", "1,000.50", "12:30", "3/4", "2024-05-06", "$5", "99.9%", "1\u202f000", "+49"]),
    ],
)
def test_what_each_kind_matches(kind, marks):
    assert found(" ".join(marks), Kinds(**{kind: True})) == marks


@pytest.mark.parametrize(
    "raw",
    ["a < b", "a <b", "<1>", "< b>", "100% sure", "20%of", "{see below}", "{a b}", "x@y", "B2B", "3rd", "$", "<!-- x"],
)
def test_what_is_text(raw):
    assert found(raw, ALL._replace(numbers=raw in ("B2B", "3rd"))) == []


@pytest.mark.parametrize(
    ("raw", "mark"),
    [
        ("see https://a.de.", "https://a.de"),
        ("(https://a.de/b_(c))", "https://a.de/b_(c)"),
        ("<i>https://a.de</i>", "https://a.de"),
        ("&lt;https://a.de?x&amp;y&gt;", "https://a.de?x&amp;y"),
        ("https://a.de&nbsp;b", "https://a.de"),
        ("https://a.de&#160;b", "https://a.de"),
        ("https://a.de&#xA0;b", "https://a.de"),
        ("https://a.de&thinsp;b", "https://a.de"),
        ("&ldquo;https://a.de&rdquo; b", "https://a.de"),
        ("https://a.de&#0039; b", "https://a.de"),
        ("https://a.de/?b&amp; c", "https://a.de/?b&amp;"),
        ("https://a.de/?b&amp;; c", "https://a.de/?b&amp;"),
        ("https://a.de/b&uuml;cher; c", "https://a.de/b&uuml;cher"),
        ("https://a.de/b&uuml; c", "https://a.de/b&uuml;"),
        ("https://a.de&#46; b", "https://a.de"),
        ("https://a.de/&period;&excl; b", "https://a.de/"),
        ("https://a.de?b&page; c", "https://a.de?b&page"),
    ],
)
def test_a_url_ends_before_the_punctuation_of_its_sentence(raw, mark):
    assert found(raw, Kinds(urls=True)) == [mark]


def test_a_url_has_more_than_its_scheme():
    assert found("http://. https://!", Kinds(urls=True)) == []


@pytest.mark.parametrize(
    ("raw", "marks", "plain"),
    [
        ("see https://a.de&nbsp;now", ["https://a.de"], "see\xa0now"),
        ("see https://a.de&amp; now", ["https://a.de&amp;"], "see now"),
        ("&#65; 5 &#x41; &frac12; &#5", ["5", "5"], "A A ½ &#"),
        ("&#123;x&#125; {y}", ["{y}"], "{x}"),
    ],
)
def test_no_mark_begins_or_ends_in_an_entity(raw, marks, plain):
    assert found(raw) == marks
    assert extract(raw, ALL).plain == plain


def test_the_first_kind_at_a_place_counts():
    assert found("<a href='{x}'>https://a.de/%s/12 {y} 5</a>") == [
        "<a href='{x}'>",
        "https://a.de/%s/12",
        "{y}",
        "5",
        "</a>",
    ]


def test_entities_become_characters_and_back():
    assert decoded("a &lt;b&gt; &amp;amp; &#65;&#x42;&auml; &unknown; &#0; &") == "a <b> &amp; ABä &unknown; &#0; &"
    assert decoded(encoded("a <b> & c")) == "a <b> & c"


@pytest.mark.parametrize(
    "part",
    [
        "<b>a</b>",
        "<br/>",
        "{a}",
        "<",
        "<a ",
        '<a x="',
        "<!--",
        "<![CDATA[",
        "{{",
        "%1",
        "&",
        "http://a)))",
        "http://a&nbsp;",
        "http://a&amp;;",
        "&#46;",
        "a.b@",
        "1,",
        "</b>",
        " {a}",
    ],
)
def test_time_is_linear(part):
    """Four times the text takes well below sixteen times as long. Processor time: the machine may be busy."""

    def seconds(count):
        best = []
        for _ in range(2):
            began_s = time.process_time()
            extract(part * count, ALL, lenient=True, max_marks=1 << 30, max_depth=1 << 30)
            best.append(time.process_time() - began_s)
        return min(best)

    assert seconds(2000) < 8 * seconds(500) + 0.02
