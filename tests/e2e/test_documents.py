"""Documents by a server in a process of its own: real answers, exact ranges, and clients that are killed."""

import subprocess
import sys

import pytest

from glossa.client import Client
from tests.e2e.process import ROOT, serving
from tests.tiny import TEXTS

LEAVE = """
import os, sys
from glossa.client import Client
stream = Client(sys.argv[1]).stream_translate_document(sys.argv[2] * 2000)
next(stream)
os._exit(1)
"""


@pytest.fixture(scope="module")
def server(tiny_translation_bundle):
    with serving(models={"en-de": str(tiny_translation_bundle)}) as server:
        yield server


def test_a_document_has_the_answers_of_its_sentences(server):
    document = "\n\n".join([*TEXTS, "1234", *TEXTS]) + "\r\n"
    with Client(server.address) as client:
        answers = [client.translate(text).text for text in TEXTS]
        pieces = list(client.stream_translate_document(document, splitter_language="en"))
    segments = [segment for piece in pieces for segment in piece.segments]
    whole = pieces[-1].document
    assert whole is not None
    assert whole.text == "\n\n".join([*answers, "1234", *answers]) + "\r\n"
    assert (whole.segments, whole.errors) == (2 * len(TEXTS), ())
    translated = whole.text.encode()
    for segment in segments:
        assert translated[segment.target.start_byte : segment.target.end_byte].decode() == segment.text
        source = document[segment.source.start : segment.source.end]
        assert source == (segment.text if segment.is_copied else TEXTS[[*answers].index(segment.text)])


def test_a_document_larger_than_a_message_is_translated(server):
    document = f"{TEXTS[0]}\n" + "* * *\n" * 60_000
    with Client(server.address) as client:
        whole = client.translate_document(document)
        assert whole.text == client.translate(TEXTS[0]).text + document[len(TEXTS[0]) :]
    assert len(document.encode()) > 1 << 18


@pytest.mark.slow
def test_a_client_that_is_killed_leaves_nothing_in_the_engine(server):
    before = server.metric("glossa_batch_items_total", method="TranslateDocument")
    program = [sys.executable, "-c", LEAVE, server.address, f"{TEXTS[0]}\n"]
    ended = subprocess.run(program, cwd=ROOT, env={"PYTHONPATH": "clients/python"}, timeout=60, check=False)
    assert ended.returncode == 1
    server.settle()
    begun = server.metric("glossa_batch_items_total", method="TranslateDocument") - before
    assert 0 < begun < 2000
    assert server.metric("glossa_batch_items_total", method="TranslateDocument", code="Canceled") > 0
