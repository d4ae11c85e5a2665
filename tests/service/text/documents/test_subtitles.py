import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.text.documents.subtitles import (
    MAX_CUES,
    check_subrip,
    check_webvtt,
    subrip_segments,
    webvtt_segments,
)
from service.text.segmentation import Splitter
from service.text.segments import DocumentError, Place

SUBRIP = """1
00:00:01,000 --> 00:00:02,000
<i>I would like to go
home</i>

2
00:00:02,000 --> 00:00:04,000
<i>with my "old" dog. He is</i>

3
00:00:04,100 --> 00:00:05,000
- tired & old.
- Yes.

4
00:00:06,100 --> 00:00:07,000
♪ la <font color="red">la</font> la ♪
"""


def texts(source, segments=subrip_segments):
    """The texts to translate, with | for what stands between two cues."""
    found = [part.text for one in segments(source, Splitter("en")) for part in one.parts if not isinstance(part, str)]
    return [re.sub(r'<br id="glossa-\d+"/>', "|", text) for text in found]


def answer(source, segments=subrip_segments, translate=str, pieces=False):
    return "".join(
        part if isinstance(part, str) else part.written(translate(part.text))
        for one in segments(source, Splitter("en"))
        for part in (pieces and one.pieces) or one.parts
    )


def cues(*lines, ends=None, newline="\n"):
    """A document of a cue each second."""
    found = [
        f"{n}\n00:00:{n:02},000 --> 00:00:{(ends or {}).get(n, n + 1):02},000\n{text}\n"
        for n, text in enumerate(lines, 1)
    ]
    return "\n".join(found).replace("\n", newline)


def webvtt(*lines):
    return "WEBVTT\n\n" + "\n".join(f"00:{n:02}.000 --> 00:{n + 1:02}.000\n{text}\n" for n, text in enumerate(lines, 1))


def upper(text):
    """A translation of a text with stand-ins."""
    return re.sub(r"<[^>]*>|([^<]+)", lambda found: (found[1] or "").upper() or found[0], text)


@pytest.mark.parametrize("pieces", [False, True])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_document_translated_into_itself_stays_byte_for_byte(newline, pieces):
    source = SUBRIP.replace("\n", newline)
    assert answer(source, pieces=pieces) == source
    changed = answer(source, translate=upper)
    assert changed.replace("♪ LA", "♪ la") != source
    assert changed.lower() == source.lower()
    assert '<font color="red">LA</font>' in changed


def test_a_sentence_goes_on_in_the_next_cue():
    expected = ['I would like to go home|with my "old" dog.', "He is", "tired & old.", "Yes."]
    assert texts(SUBRIP) == [*expected, 'la <g id="glossa-0">la</g> la']
    assert texts(cues("One", "and two", "and three. Four")) == ["One|and two|and three.", "Four"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (cues("One", "- two"), ["One", "two"]),
        (cues("- One\n- two"), ["One", "two"]),
        (cues("One\n\ntwo"), ["One", "two"]),
        (cues("One >> two"), ["One", "two"]),
        (cues("One", "♪ two"), ["One", "two"]),
        (cues("One", "{\\an8}two"), ["One", "two"]),
        (cues("{\\an8}One", "{\\an8}two"), ["One|two"]),
        (cues("One", "two", ends={1: 3}), ["One", "two"]),  # at the same time
        (cues("One", *[""] * 4, "two"), ["One", "two"]),  # long after
        (cues("-5 degrees", "and -6"), ["-5 degrees|and -6"]),
        (cues("One <b>two", "three</b>"), ['One <g id="glossa-0">two</g>', "three"]),
        (cues("<b>One</b>", "<b>two</b>"), ["One|two"]),
        (cues("One <b>two</b>", "three"), ['One <g id="glossa-0">two</g>|three']),
        (cues("<LAUGHS & CRIES!>", "a < b"), ["&lt;LAUGHS &amp; CRIES!&gt;|a &lt; b"]),
        (cues("42", "<b></b>", "12:30"), []),
    ],
)
def test_what_is_one_text(source, expected):
    assert texts(source) == expected
    assert answer(source) == answer(source, pieces=True) == source


def test_voices_and_settings_of_webvtt_separate_texts():
    source = webvtt(
        "<v Ann>One", "<v Ann>and two", "<v Bob>Three", "and <c.red.big>four</c> <00:05.500>times &lt; &amp;"
    )
    assert texts(source, webvtt_segments) == [
        "One|and two",
        "Three",
        'and <g id="glossa-0">four</g> <x id="glossa-1"/>times &lt; &amp;',
    ]
    assert answer(source, webvtt_segments) == source
    assert texts(source.replace("00:03.000\n", "00:03.000 line:0\n", 1), webvtt_segments)[:2] == ["One", "and two"]
    assert texts(webvtt("<v A>One <v B>two"), webvtt_segments) == ["One", "two"]


def test_notes_styles_and_identifiers_of_webvtt_are_copied():
    source = (
        "WEBVTT Title.\n\nNOTE One note.\n\nSTYLE\n::cue(b) {}\n\nREGION\nid:x\n\nAn id.\n00:01.000 --> 00:02.000\nOne."
        "\n\nNOTE\nTwo.\n"
    )
    assert answer(source, webvtt_segments, str.upper) == source.replace("\nOne.", "\nONE.")


def test_characters_of_an_answer_are_written_as_the_format_has_them():
    for segments, source, expected in (
        (subrip_segments, cues("One"), "a < b & c"),
        (webvtt_segments, webvtt("One"), "a &lt; b &amp; c"),
    ):
        assert expected in answer(source, segments, lambda _: "a < b & c")
    markup = 'a &lt; <g id="glossa-0">b</g> &amp; c'
    assert "\na < <b>b</b> & c\n" in answer(cues("One <b>two</b>"), translate=lambda _: markup)
    assert "\na &lt; <b>b</b> &amp; c\n" in answer(webvtt("One <b>two</b>"), webvtt_segments, lambda _: markup)


def test_an_answer_keeps_times_in_order_and_the_lines_of_each_cue():
    source = cues("One two\nthree four", "five six")
    changed = answer(source, translate=lambda _: '<br id="glossa-0"/> eins zwei drei vier fünf sechs')
    assert changed == cues("eins zwei\ndrei vier", "fünf sechs")


def test_a_sentence_of_many_cues_is_translated_cue_by_cue():
    assert texts(cues(*["and on"] * MAX_CUES)) == ["|".join(["and on"] * MAX_CUES)]
    source = cues(*["and on\nit goes"] * (MAX_CUES + 1))
    assert texts(source) == ["and on it goes"] * (MAX_CUES + 1)
    assert answer(source) == source


def test_all_cues_are_one_paragraph():
    places = [one.place for one in subrip_segments(SUBRIP, Splitter("en")) if not one.is_copied]
    assert places == [Place.FIRST, *[Place.LATER] * 4]


LINES = st.lists(st.text(st.sampled_from("aB.- ♪<i>/\n{\\}&;é红1\r"), max_size=20), max_size=6)


@settings(max_examples=150)
@given(LINES, st.booleans())
def test_segments_tile_the_document(lines, is_webvtt):
    source = webvtt(*lines) if is_webvtt else cues(*lines)
    segments, check = (webvtt_segments, check_webvtt) if is_webvtt else (subrip_segments, check_subrip)
    try:
        assert check(source) == ""
    except DocumentError:
        return
    found = list(segments(source, Splitter("en")))
    assert "".join(source[one.span.start : one.span.end] for one in found) == source
    arrows = re.findall("[^\n\r]*-->[^\n\r]*", source)
    for pieces in (False, True):
        assert re.findall("[^\n\r]*-->[^\n\r]*", answer(source, segments, upper, pieces)) == arrows
        if not is_webvtt:
            assert "".join(answer(source, segments, str, pieces).split()) == "".join(source.split())


@pytest.mark.parametrize(
    "part", ["a\n", "<i>", "- a\n", "{\\an8}", "a. ", "\n", "<", "&", " ", "\n1\n00:00:01,000 --> 00:00:02,000\na"]
)
def test_hostile_text_takes_linear_time(part):
    began_s = time.process_time()
    for segments, source in (
        (subrip_segments, cues(part * (50_000 // len(part)))),
        (webvtt_segments, webvtt(part * (50_000 // len(part)))),
    ):
        for _ in segments(source, Splitter("en")):
            pass
    assert time.process_time() - began_s < 8
