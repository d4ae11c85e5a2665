"""Documents with context by a server in a process of its own, compared with PyTorch; and what context is for: pronouns
that a model trained with it translates right, and without it cannot."""

import re
import shlex
import subprocess
import sys

import pytest
import torch

from glossa.client import Client, ClientError
from model.checkpoints.checkpoint import load_checkpoint
from model.reference.greedy import greedy
from model.tokenizer import Tokenizer
from model.training.data.embedded import unseen_examples
from tests.e2e.process import ROOT, serving
from tests.tiny import TEXTS, tiny_config, tiny_model

pytestmark = pytest.mark.slow  # `tests.service.edge.rpcs` joins and cuts the same documents

SENTENCES = tuple(f"{text.capitalize()}." for text in TEXTS)
TOKENIZER = Tokenizer.train(SENTENCES, kind="words", vocab_size=64, with_separator=True)
MAX_TOKENS = 12
EXAMPLE = (  # a file, the command that translates it, and what it prints
    r"^`story.txt`:\n\n```text\n(.*?)^```\n.*?^glossa (translate --document story.txt [^\n]*)\n```\n\n"
    r"[^\n]*:\n\n```text\n(.*?)^```$"
)


@pytest.fixture(scope="module")
def model():
    context = {"vocab_size": TOKENIZER.vocab_size, "context_sentences": 2, "separator_id": 4, "extra_eos_ids": (4,)}
    return tiny_model(tiny_config(**context, num_encoder_layers=1, num_decoder_layers=1), seed=7)


@pytest.fixture(scope="module")
def client(model, exported):
    bundle = exported(model, TOKENIZER)
    with serving(models={"en-de": str(bundle)}) as server, Client(server.address) as client:
        yield client


def chained(model, tokenizer, sentences, size, max_tokens=MAX_TOKENS):
    """The translations of a paragraph by the uncached reference, each after the `size` ones before it."""
    (separator,) = model.config.extra_eos_ids
    done = list[tuple[str, str]]()
    for sentence in sentences:
        source, prompt = list[int](), [1]
        for before, translation in done[len(done) - size :] if size <= len(done) else done:
            source += [*tokenizer.encode(before), separator]
            prompt += [*tokenizer.encode(translation), separator]
        new = greedy(model, prompt, source=[*source, *tokenizer.encode(sentence), 2], max_tokens=max_tokens)
        done.append((sentence, tokenizer.decode(new)))
    return [translation for _, translation in done]


@pytest.mark.parametrize("size", [0, 1, 2])
def test_a_document_has_the_answers_of_the_uncached_reference(client, model, size):
    """Two paragraphs, the second one backwards; a copied number is in no context."""
    paragraphs = SENTENCES, SENTENCES[::-1]
    expected = [chained(model, TOKENIZER, paragraph, size) for paragraph in paragraphs]
    assert expected[0] != chained(model, TOKENIZER, paragraphs[0], (size + 1) % 3)
    text = "\n\n7\n\n".join(" ".join(paragraph) for paragraph in paragraphs)
    whole = client.translate_document(text, context_sentences=size, max_tokens=MAX_TOKENS, splitter_language="en")
    assert whole.errors == ()
    assert whole.text == "\n\n7\n\n".join(" ".join(paragraph) for paragraph in expected)


def test_tags_are_placed_by_the_text_alone(model, exported):
    """Without its tags, a sentence has the same answer."""
    page = f"<p>{SENTENCES[0]} {SENTENCES[1].replace('black', '<b>black</b>')} {SENTENCES[2]}</p>"
    bundle = exported(model, TOKENIZER, attention=True)
    with serving(models={"en-de": str(bundle)}) as server, Client(server.address) as client:
        whole = client.translate_document(page, format="html", context_sentences=2, max_tokens=MAX_TOKENS)
    assert whole.errors == ()
    assert whole.text.count("<b>") == whole.text.count("</b>") == 1
    expected = " ".join(chained(model, TOKENIZER, SENTENCES[:3], 2))
    plain = whole.text.replace("<b>", " ").replace("</b>", " ").removeprefix("<p>").removesuffix("</p>")
    assert "".join(plain.split()) == "".join(expected.split())


def test_a_beam_follows_its_own_best_translations(client):
    text = " ".join(SENTENCES)
    options = {"beam_size": 3, "max_tokens": MAX_TOKENS, "splitter_language": "en"}
    alone, joined = (client.translate_document(text, context_sentences=size, **options).text for size in (0, 2))
    assert alone != joined
    assert joined == client.translate_document(text, context_sentences=2, **options).text


def test_a_model_names_its_context_and_refuses_more(client):
    assert client.get_model().context_sentences == 2
    with pytest.raises(ClientError, match=r"context_sentences: must be 0\.\.2 for model 'en-de', got 3"):
        client.translate_document(SENTENCES[0], context_sentences=3)


def glossa(*words):
    done = subprocess.run([sys.executable, "-m", "cli.main", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def pronouns(tmp_path_factory):
    """The checkpoint and the bundle of the preset, by the commands."""
    directory = tmp_path_factory.mktemp("pronouns")
    checkpoint, bundle = directory / "checkpoint", directory / "bundle"
    glossa("train", "pronouns", "--out", str(checkpoint))
    glossa("export", str(checkpoint), str(bundle), "--precision", "fp32")
    return checkpoint, bundle


def test_the_example_of_the_page_is_what_the_preset_does(pronouns, tmp_path):
    """docs/documents.md."""
    page = (ROOT / "docs/documents.md").read_text(encoding="utf-8")
    ((story, command, shown),) = re.findall(EXAMPLE, page, re.MULTILINE | re.DOTALL)
    (tmp_path / "story.txt").write_text(story, encoding="utf-8")
    words = [str(tmp_path / word) if word == "story.txt" else word for word in shlex.split(command)]
    with serving(models={"en-de": str(pronouns[1])}) as server:
        assert glossa(*words, "--address", server.address) == shown
        alone = glossa(*words, "--context-sentences", "0", "--address", server.address)
    pairs = [line.split(". ") for line in alone.splitlines()]
    assert [first for first, _ in pairs] == [line.split(". ")[0] for line in shown.splitlines()]
    assert len({second for _, second in pairs}) == 1, "alone, the same sentence has the same translation"


def test_pronouns_are_right_with_context_and_chance_without(pronouns):
    """Every sentence but the first of a document begins with a pronoun: er, sie or es."""
    checkpoint, bundle = pronouns
    unseen = unseen_examples("embedded documents with pronouns", 600)
    assert unseen is not None
    documents = [unseen.pairs[start : start + 3] for start in range(0, len(unseen.pairs), 3)]
    text = "\n\n".join(" ".join(source for source, _ in document) for document in documents)
    loaded = load_checkpoint(checkpoint)
    right = {}
    with serving(models={"en-de": str(bundle)}) as server, Client(server.address) as client:
        assert client.get_model().context_sentences == 1
        for size in (0, 1):
            pieces = client.stream_translate_document(text, context_sentences=size, splitter_language="en")
            found = [segment.text for piece in pieces for segment in piece.segments if not segment.is_copied]
            assert len(found) == len(unseen.pairs)
            with torch.inference_mode():
                expected = chained(loaded.model, loaded.tokenizer, [source for source, _ in documents[0]], size, 40)
            assert found[:3] == expected
            pairs = zip(found, [target for _, target in unseen.pairs], strict=True)
            words = [(one.split()[:1], other.split()[:1]) for one, other in pairs]
            right[size] = sum(one == other for place, (one, other) in enumerate(words) if place % 3) / (
                2 * len(documents)
            )
    assert right[0] < 0.5, "chance is a third"
    assert right[1] > 0.85
