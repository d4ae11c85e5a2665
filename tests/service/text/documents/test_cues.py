import pytest

from service.text.documents.cues import cues_of
from service.text.segments import DocumentError

SUBRIP = """\ufeff1
00:00:01,000 --> 00:00:02,500 X1:1 X2:2
Hello
world

2
01:00:00,5 --> 1:00:02.25
has 2 lines,

one blank
7
00:00:09,000 --> 00:00:10,000


8
9:1,0 --> 9:02,000
1984
"""
WEBVTT = """WEBVTT - a title
Kind: captions

STYLE
::cue { color: red }

NOTE
A --  note

first
00:01.000 --> 00:02.500 line:0
Hello

NOTE the end

1:00:03.000 --> 1:00:04.000
<v Ann>Bye

2
"""


def texts(source, *, is_webvtt):
    return [source[cue.text.start : cue.text.end] for cue in cues_of(source, is_webvtt=is_webvtt)]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_a_cue_of_subrip_ends_before_the_number_of_the_next_one(newline):
    source = SUBRIP.replace("\n", newline)
    found = [text.replace(newline, "\n") for text in texts(source, is_webvtt=False)]
    assert found == ["Hello\nworld", "has 2 lines,\n\none blank", "", "1984"]
    cues = list(cues_of(source, is_webvtt=False))
    assert [(cue.start_s, cue.end_s) for cue in cues] == [(1, 2.5), (3600.5, 3602.25), (9, 10), (541, 542)]
    assert [cue.place for cue in cues] == ["X1:1 X2:2", "", "", ""]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_a_cue_of_webvtt_ends_at_the_first_blank_line(newline):
    source = WEBVTT.replace("\n", newline)
    assert texts(source, is_webvtt=True) == ["Hello", "<v Ann>Bye"]
    assert [(cue.start_s, cue.place) for cue in cues_of(source, is_webvtt=True)] == [(1, "line:0"), (3603, "")]


@pytest.mark.parametrize(
    ("source", "is_webvtt", "problem"),
    [
        (
            "<html><p>1</p></html>",
            False,
            "must be SubRip, but has '<html><p>1</p></html>' before its first cue; begin w",
        ),
        ("<html><p>1</p></html>", True, "must be WebVTT: its first line must begin with WEBVTT, got '<html><p>1</p>"),
        (SUBRIP.lstrip("\ufeff"), True, "got '1'; it may be SubRip: give the format srt"),
        (WEBVTT, False, "must be SubRip, but its first line is 'WEBVTT - a title'; give the format vtt"),
        ("WEBVTTX\n", True, "must begin with WEBVTT, got 'WEBVTTX'"),
        (
            "Hello\n\n1\n00:00:01,000 --> 00:00:02,500\nx\n",
            False,
            "must be SubRip, but has 'Hello' before its first cue",
        ),
        (
            SUBRIP.replace("00:00:09,000", "1234567:00:09,000"),
            False,
            "line 12 must be the times of a cue, got '1234567:",
        ),
        (
            SUBRIP.replace("00:00:09,000 --> ", "00:00:09 ---> "),
            False,
            "line 12 must be the times of a cue, got '00:00:09 ---> 00:00:10,000'; write 00:00:01,000 --> 00:00:02,500",
        ),
        (
            WEBVTT.replace("00:02.500", "00:0x.500"),
            True,
            "line 11 must be the times of a cue, got '00:01.000 --> 00:0x.500 line:0'; write 00:00:01.000 -->",
        ),
    ],
)
def test_what_is_no_such_document_is_refused(source, is_webvtt, problem):
    with pytest.raises(DocumentError) as error:
        list(cues_of(source, is_webvtt=is_webvtt))
    assert problem in str(error.value)


def test_a_document_without_cues_has_none():
    assert list(cues_of("WEBVTT", is_webvtt=True)) == []
