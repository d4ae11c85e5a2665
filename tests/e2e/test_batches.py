"""Calls with many items against real engines: answers of all kinds, a lost engine, a drain, the page's programs."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from glossa.client import Client, ClientError
from tests.e2e.process import engine_pids, serving
from tests.tiny import TEXTS

PAGE = (Path(__file__).parents[2] / "docs/batches.md").read_text(encoding="utf-8")
STUBS = Path(__file__).parents[2] / "examples"
WORDS = sorted({word for text in TEXTS for word in text.split()})
MIXED = [" ".join(WORDS[(start + step) % len(WORDS)] for step in range(1 + start % 20)) for start in range(64)]


@pytest.fixture(scope="module")
def models(tiny_translation_bundle, tiny_encoder_bundles):
    return {"en-de": str(tiny_translation_bundle), "classify": str(tiny_encoder_bundles["classify"])}


@pytest.fixture(scope="module")
def server(models):
    with serving(models=models) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with Client(server.address) as client:
        yield client


def test_answers_are_those_of_unary_calls(client):
    def key(answer):
        return answer.text, answer.tokens, answer.finish_reason

    alone = [key(client.translate(text, include_tokens=True)) for text in MIXED]
    assert [key(answer) for answer in client.translate_batch(MIXED * 4, include_tokens=True)] == alone * 4
    assert len(set(alone)) > 32


def test_other_kinds_are_those_of_unary_calls(client):
    texts = MIXED[:16]
    scores = [client.score(text, text).cumulative_logprob for text in texts]
    found = client.score_batch((text, text) for text in texts)
    assert [score.cumulative_logprob for score in found] == scores
    vectors = [client.embed(text, model="classify", normalize=True, pooling="cls") for text in texts]
    assert list(client.embed_batch(texts, model="classify", normalize=True, pooling="cls")) == vectors
    labels = [client.classify(text).labels for text in texts]
    assert [found.labels for found in client.classify_batch(texts)] == labels


def test_a_lost_engine_costs_no_item(models):
    """The only process is killed in mid-batch: items in flight are begun again, others wait for the next one."""
    settings = {"models": {"en-de": models["en-de"]}, "engines": 1, "max_rows": 4}
    with serving(**settings) as server, Client(server.address) as client:
        texts = MIXED[:16]
        alone = [client.translate(text, ignore_eos=True).text for text in texts]
        (pid,), answers = engine_pids(server.process.pid), list[str]()
        for answer in client.translate_batch(texts * 4, ignore_eos=True):
            if not answers:
                os.kill(pid, signal.SIGKILL)
            answers.append(answer.text)
        assert answers == alone * 4
        assert engine_pids(server.process.pid) != [pid]


@pytest.mark.slow
def test_a_drain_loses_no_answer_of_an_item_that_has_begun(models):
    with serving(models={"en-de": models["en-de"]}, engines=1, max_rows=4) as server:
        answers = list[str]()

        def read(batch):
            for answer in batch:
                if not answers:
                    server.process.send_signal(signal.SIGTERM)
                answers.append(answer.text)

        with Client(server.address) as client:
            texts = MIXED[:20]
            alone = [client.translate(text, ignore_eos=True).text for text in texts]
            with pytest.raises(ClientError) as caught:
                read(client.translate_batch(texts * 200, ignore_eos=True))
        server.process.wait(60)
        server._reader.join(60)
        assert caught.value.reason == "SHUTTING_DOWN"
        assert answers == (alone * 200)[: len(answers)]
        (line,) = [
            line for line in server.events if line.get("method", "").endswith("TranslateBatch") and "items" in line
        ]
        assert (line["items"], line["answered"]) == (len(answers), len(answers))


def program(name):
    if name in PAGE and (STUBS / name).exists():
        return (STUBS / name).read_text(encoding="utf-8")
    return re.search(rf"^```python\n(# {name}\n.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[1]  # type: ignore[index]


def output_of(folder, name, *arguments):
    path = folder / name
    path.write_text(program(name))
    command = [sys.executable, str(path), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()


@pytest.mark.slow
def test_the_programs_of_the_page_run(server, client, tmp_path):
    texts = MIXED[5:8]
    alone = [client.translate(text, max_tokens=16).text for text in texts]
    lines = output_of(tmp_path, "batch.py", server.address, *texts)
    assert lines[:3] == alone
    assert lines[3:7] == [
        *[f"answered: {text}" for text in alone],
        "failed: INVALID_ARGUMENT {'text': 'must not be empty or blank'}",
    ]
    assert lines[7:] == [f"score: {client.score(text, text).score:.4f}" for text in texts]
    lines = output_of(tmp_path, "batch_stub.py", server.address, *texts)
    assert sorted(lines) == sorted(f"{text[:20]}: {answer}" for text, answer in zip(texts, alone, strict=True))
