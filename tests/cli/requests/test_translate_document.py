"""`glossa translate --document`: formats, output, and segments that fail."""

import dataclasses
import json
import math
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from cli.requests.ask import MAX_CONTEXT
from cli.requests.translate_document import SUFFIXES, Format, format_of, new_file
from export.bundle.manifest import Context
from glossa.client import documents as client_documents
from glossa.v1 import glossa_pb2 as pb
from service.edge.rpcs.document_formats import FORMATS
from tests.cli.command import ask
from tests.edge import RESULT, TOKENIZERS, answered, manifest

GERMAN = "zwei rote Häuser"  # every answer


async def test_a_file_is_translated_by_its_suffix(edge, tmp_path):
    page = tmp_path / "page.HTML"
    page.write_text("<p>a cat</p>\r\n", newline="")
    assert await ask(edge, "translate", "--document", page) == f"<p>{GERMAN}</p>\n"
    out = tmp_path / "out.html"
    await ask(edge, "translate", "--document", page, "--out", out)
    assert out.read_bytes().decode() == f"<p>{GERMAN}</p>\r\n"
    await ask(edge, "translate", "--document", page, "--format", "text", "--out", out, fails=True)
    assert out.read_bytes() == b"<p>a cat</p>\r\n"


async def test_subtitles_and_catalogs_are_translated(edge, tmp_path):
    """A sentence over two cues is one text, whose answer is shared out; an answer is marked as fuzzy."""
    cue = "1\n00:00:01,000 --> 00:00:02,000\n{}\n\n2\n00:00:02,000 --> 00:00:03,000\n{}\n"
    subtitles, catalog = tmp_path / "film.srt", tmp_path / "de.po"
    subtitles.write_text(cue.format("a black", "cat"))
    assert await ask(edge, "translate", "--document", subtitles, "--splitter-language", "en") == cue.format(
        "zwei rote", "Häuser"
    )
    assert len(edge.pool.requests) == 1
    header = 'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset={}\\n"\n"Last-Translator: {}\\n"\n\n'
    catalog.write_bytes(f'{header.format("ISO-8859-1", "é")}msgid "a {{0}} cat"\nmsgstr ""\n'.encode("latin-1"))
    shown = await ask(edge, "translate", "--document", catalog, "--splitter-language", "en")
    assert shown.startswith(header.format("UTF-8", "é") + '#, fuzzy\nmsgid "a {0} cat"\nmsgstr "')
    assert sorted(shown.rsplit('"', 2)[1].split()) == ["Häuser", "rote", "zwei", "{0}"]
    subtitles.write_text("<p>a cat</p>")
    refused = await ask(edge, "translate", "--document", subtitles, fails=True)
    assert "text: must be SubRip, but has '<p>a cat</p>' before its first cue" in refused


async def test_standard_input_is_text_unless_a_format_is_given(edge):
    assert await ask(edge, "translate", "--document", "-", lines="a cat\n\n***\n") == f"{GERMAN}\n\n***\n"
    page = await ask(edge, "translate", "--document", "-", "--format", "html", lines="<b>a cat</b>")
    assert page == f"<b>{GERMAN}</b>"


async def test_segments_that_fail_are_listed_and_copied(edge, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("a cat\n\na zebra\na 😀\n")
    output = await ask(edge, "translate", "--document", text, "--json", fails=True)
    lines = output.splitlines()
    assert lines[0].startswith(f"{text}:3: INVALID_ARGUMENT: text: the model's closed vocabulary does not know")
    assert lines[1].startswith(f"{text}:4: INVALID_ARGUMENT")
    whole = json.loads(lines[2])
    assert (whole["text"], len(whole["errors"])) == (f"{GERMAN}\n\na zebra\na 😀\n", 2)
    assert lines[3] == "sentences were split by the rules of en; name others with --splitter-language"
    assert lines[4] == "2 of 3 segments were not translated"


async def test_flags_that_contradict_each_other_are_refused(edge, tmp_path):
    text = tmp_path / "text.txt"
    text.write_bytes(b"caf\xe9")
    for flags, problem in (
        (["--document", text, "a cat"], "give one of TEXT, --document FILE and --batch FILE"),
        (["--out", "x", "a cat"], "need --document"),
        (["--context-sentences", "1", "a cat"], "--context-sentences and --out: need --document"),
        (["--document", "-", "--context-sentences", "1"], "--context-sentences: must be 0: model 'en-de' was trained"),
        (["--document", "x.pdf"], "the suffix '.pdf' names no format; give --format"),
        (["--document", tmp_path / "none.txt"], "none.txt: No such file"),
        (["--document", text], "must be UTF-8, is not at byte 3"),
    ):
        assert problem in await ask(edge, "translate", *flags, fails=True)
    assert not edge.pool.requests


async def test_more_context_than_any_model_reads_is_refused_by_its_flag(edge):
    assert get_type_hints(Context, include_extras=True)["sentences"].__metadata__[0].most == MAX_CONTEXT
    output = await ask(edge, "translate", "--document", "-", "--context-sentences", "3000000000", fails=2)
    assert "'--context-sentences': Input should be less than or equal to 64" in " ".join(
        output.replace("│", " ").split()
    )


def test_an_output_is_there_as_a_whole_or_not_at_all(tmp_path):
    """Also one that a link names, which keeps its mode; a pipe is written to as it is."""
    target, link = tmp_path / "out.txt", tmp_path / "link.txt"
    target.write_bytes(b"old")
    target.chmod(0o600)
    link.symlink_to(target)
    with pytest.raises(UnicodeEncodeError), new_file(link) as file:
        file.writelines(text.encode("ascii") for text in ("half", "ä"))
    assert target.read_bytes() == b"old"
    with new_file(link) as file:
        file.write(b"new")
        assert target.read_bytes() == b"old"
    assert target.read_bytes() == b"new"
    assert link.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o600
    with new_file(Path("/dev/null")) as file:
        file.write(b"none")
    assert Path("/dev/null").is_char_device()
    assert sorted(tmp_path.iterdir()) == [link, target]


@pytest.mark.parametrize(
    ("name", "format"), [("a.txt", "text"), ("b.xlf", "xliff"), ("-", "text"), ("c.htm", "html"), ("d.pot", "po")]
)
def test_formats_follow_suffixes(name, format):
    assert format_of(name, "") == format
    assert format_of(name, "html") == "html"


async def test_uncertain_segments_and_missing_terms_are_listed(edge, tmp_path):
    edge.calibrate()
    tokens, logprobs = TOKENIZERS["translation"].encode(GERMAN), tuple(map(math.log, (0.75, 0.5, 0.25, 0.9)))
    edge.pool.answer = answered(dataclasses.replace(RESULT, tokens=(*tokens, 2), token_logprobs=logprobs))
    text, terms = tmp_path / "text.txt", tmp_path / "terms.tsv"
    text.write_text("a cat\n\na red {x} house\n")
    terms.write_text("cat\tKatze\n")
    translate = ["translate", "--document", text, "--splitter-language", "en", "--markup", "placeholders"]
    shown = await ask(edge, *translate, "--confidence", "--uncertain-below", 0.6)
    listed = [line.replace("{x} ", "").replace(" {x}", "") for line in shown.splitlines() if ": confidence" in line]
    assert listed == [f"{text}:{line}: confidence 0.50: {GERMAN}" for line in (1, 3)]
    assert "{x}" in shown
    assert "confidence" not in await ask(edge, *translate, "--confidence", "--uncertain-below", 0.1)
    assert "terms without their translation: cat\n" in await ask(edge, *translate, "--glossary", terms)


async def test_a_language_without_rules_is_reported(edge):
    shown = await ask(edge, "translate", "--document", "-", "--format", "html", lines="<html lang=th>a cat")
    assert shown.endswith("texts were split into paragraphs alone: there are no rules for sentences of this language\n")
    shown = await ask(edge, "translate", "--document", "-", "--splitter-language", "und", lines="a cat\n")
    assert "paragraphs" not in shown
    flags = ["--confidence", "--uncertain-below", 1.5]
    refused = await ask(edge, "translate", "--document", "-", *flags, lines="a cat\n", fails=True)
    assert refused == "error: --uncertain-below: must be 0..1, got 1.5\n"


async def test_sentences_are_translated_in_context(edge, tmp_path):
    """The units of an XLIFF file are one paragraph."""
    edge.models["en-de"].manifest = manifest(context=Context(sentences=1, separator=4))
    unit, file = "<trans-unit><source>a cat</source></trans-unit>", tmp_path / "text.xlf"
    file.write_text(f'<xliff version="1.2"><file>{unit * 2}</file></xliff>')
    await ask(edge, "translate", "--document", file, "--max-tokens", 4, "--context-sentences", 1)
    cat, answer = (tuple(TOKENIZERS["translation"].encode(text)) for text in ("a cat", GERMAN))
    found = [(request.source, request.prompt) for request in edge.pool.requests]
    assert found == [((*cat, 2), (1,)), ((*cat, 4, *cat, 2), (1, *answer, 4))]


async def test_an_output_that_cannot_be_written_is_refused_before_the_call(edge, tmp_path):
    text, out = tmp_path / "text.txt", tmp_path / "none" / "out.txt"
    text.write_text("a cat\n")
    problem = f"--out {out}: cannot be written: No such file or directory; give a file in a folder that is there"
    shown = await ask(edge, "translate", "--document", text, "--out", out, fails=True)
    assert problem in shown
    shown = await ask(edge, "translate", "--document", text, "--out", tmp_path, fails=True)
    assert f"--out {tmp_path}: cannot be written: Is a directory" in shown
    assert not edge.pool.requests


def test_formats_are_those_of_servers_and_clients():
    names = [name.removeprefix("DOCUMENT_FORMAT_").lower() for name in pb.DocumentFormat.keys()[1:]]
    assert names == [*get_args(Format)] == [*get_args(client_documents.Format)]
    assert {*SUFFIXES.values()} == {*names}
    assert [*FORMATS] == [0, *map(pb.DocumentFormat.Value, pb.DocumentFormat.keys()[1:])]
