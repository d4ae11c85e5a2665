"""Texts of files and of standard input: UTF-8 with or without a mark, and what is none is named with its place."""

import io
import sys

import pytest

from cli.terminal import UsageError
from cli.text_input import lines_of, read_document, read_text
from tests.cli.command import ask, run

BOM = b"\xef\xbb\xbf"


@pytest.fixture
def given(tmp_path, monkeypatch):
    """Gives the same bytes as a file and as standard input, and returns the names of both."""

    def given(data):
        (tmp_path / "text.txt").write_bytes(data)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        return tmp_path / "text.txt", "-"

    return given


def test_a_byte_order_mark_is_no_part_of_the_text(given):
    for name in given(BOM + "é\r\n\ufeffb\n\nc".encode()):
        assert list(lines_of(name)) == ["é", "\ufeffb", "", "c"], "a mark elsewhere is text"
    for name in given(BOM + "é\r\n\ufeffb".encode()):
        assert read_text(name) == "é\r\n\ufeffb"
    for name in given(b""):
        assert list(lines_of(name)) == []


@pytest.mark.parametrize("data", [b"ok\nna\xefve\n", BOM + b"ok\nna\xefve\n"])
def test_text_that_is_no_utf_8_is_named_with_its_place(given, data):
    for name in given(data):
        lines = lines_of(name)
        assert next(lines) == "ok"
        shown = "standard input" if name == "-" else str(name)
        with pytest.raises(UsageError, match=r"at byte 2 of the line; convert it, e\.g\. with iconv") as caught:
            next(lines)
        assert str(caught.value).startswith(f"{shown}:2: must be UTF-8")
    for name in given(data):
        with pytest.raises(UsageError, match=f": must be UTF-8, is not at byte {len(data) - 4}; convert it"):
            read_text(name)


def test_a_binary_file_is_called_one(given):
    for name in given(b"\x89PNG\0\xff\n"):
        with pytest.raises(
            UsageError, match=r"(text.txt|standard input): must be text, but has zero bytes; give a file"
        ):
            list(lines_of(name))


async def test_every_verb_names_what_it_cannot_read(edge, tmp_path):
    latin, folder = tmp_path / "latin.txt", tmp_path / "folder"
    latin.write_bytes(b"a cat\ncaf\xe9\n")
    folder.mkdir()
    translate, generate = ("translate", "a cat"), ("generate", "a")
    words: tuple[object, ...]
    found = "must be UTF-8, is not at byte"
    for words, problem in (
        (("translate", "--batch", latin), f"latin.txt:2: {found} 3 of the line"),
        (("translate", "--batch", folder), "folder: Is a directory; give a file in it"),
        (("translate", "--document", latin), f"latin.txt: {found} 9; convert it"),
        (("translate", "--document", folder, "--format", "text"), "folder: Is a directory; give a file in it"),
        ((*translate, "--glossary", latin), f"latin.txt: {found} 9; convert it"),
        ((*translate, "--glossary", folder), "folder: Is a directory; give a file in it"),
        ((*translate, "--glossary", "my.terms"), "my.terms: no such file; a value with '.' or '/' is a file"),
        ((*generate, "--lark", latin), f"latin.txt: {found} 9; convert it"),
        ((*generate, "--lark", folder), "folder: Is a directory; give a file in it"),
    ):
        shown = await ask(edge, *words, fails=True)
        assert problem in shown, words
        assert "Traceback" not in shown
    for words in (("translate",), ("translate", "--batch", "-"), ("score",)):
        shown = await ask(edge, *words, lines=b"caf\xe9\n", fails=True)
        assert f"standard input:1: {found} 3 of the line" in shown, words


def test_training_data_is_a_file(tmp_path):
    shown = run("train", "demo", "--out", tmp_path / "x", "--data", tmp_path, fails=True)
    assert shown == f"error: --data {tmp_path}: Is a directory; give a file in it\n"


@pytest.mark.parametrize("words", [(), ("--batch", "-"), ("--document", "-", "--splitter-language", "en")])
async def test_a_mark_on_standard_input_is_not_translated(edge, words):
    """The model's vocabulary lacks it."""
    assert await ask(edge, "translate", *words, lines=BOM + b"a cat\n") == "zwei rote Häuser\n"


@pytest.mark.parametrize(
    ("start", "encoding"),
    [
        ("", "utf-8"),
        ("\ufeff", "utf-8"),
        ('<?xml version="1.0" encoding="iso-8859-1"?>', "iso-8859-1"),
        ("<head><META charset=windows-1252>", "windows-1252"),
        ('<meta http-equiv="Content-Type" content="text/html; charset=koi8-r">', "koi8-r"),
        ('<?xml version="1.0" encoding="UTF-16"?>', "utf-8"),
        ('<?xml version="1.0" encoding="UTF-16"?>', "utf-16"),
    ],
)
def test_a_document_is_read_in_the_encoding_that_it_declares(tmp_path, start, encoding):
    text = start + ("Привет" if encoding == "koi8-r" else "König")
    (tmp_path / "a").write_bytes(text.encode(encoding))
    assert read_document(tmp_path / "a") == text.removeprefix("\ufeff")


@pytest.mark.parametrize("encoding", ["none-such", "us-ascii"])
def test_a_wrong_declaration_is_refused(tmp_path, encoding):
    (tmp_path / "a").write_bytes(f'<?xml version="1.0" encoding="{encoding}"?>König'.encode())
    with pytest.raises(UsageError, match=f"cannot be read in the encoding '{encoding}' that it declares"):
        read_document(tmp_path / "a")
