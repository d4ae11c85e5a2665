"""A student of Marian, imported from its own files, exported and served: answers are those of the PyTorch reference."""

from concurrent.futures import ThreadPoolExecutor
from random import Random

import numpy as np
import pytest

from cli.training.import_model import opened
from export.bundle.directory import load_bundle
from export.options import ExportOptions
from export.to_onnx import export_bundle
from glossa.client import Client
from glossa.v1 import glossa_pb2 as pb
from model.checkpoints.checkpoint import load_checkpoint
from model.pretrained.convert_tokenizer import convert_tokenizer
from model.pretrained.import_checkpoint import import_checkpoint
from model.reference.beam import beam_search
from model.reference.greedy import cross_attention, greedy, score
from tests.e2e.process import serving
from tests.marian_files import OPTIONS, PIECES, release

MOST = 10
WORDS = ("the", "dog", "cat", "sees", "a")
START, EOS = len(PIECES), 0


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("student")
    release(folder / "release", {**OPTIONS, "enc-depth": 1}, seed=13)
    with opened(str(folder / "release"), None, is_offline=True, allow_pickle=False, eos_id=None) as source:
        tokenizer = convert_tokenizer(source.directory)
        import_checkpoint(
            source.directory,
            folder / "checkpoint",
            tokenizer,
            stored=source.stored,
            origin=source.origin,
            max_length=24,
        )
    export_bundle(folder / "checkpoint", folder / "bundle", ExportOptions(attention=True))
    return folder


@pytest.fixture(scope="module")
def student(paths):
    return load_checkpoint(paths / "checkpoint")


@pytest.fixture(scope="module")
def client(paths):
    with serving(models={"student": str(paths / "bundle")}) as server, Client(server.address) as client:
        yield client


def texts(count, seed=1):
    rng = Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, 8))) for _ in range(count)]


def source_of(student, text):
    return [*student.tokenizer.encode(text), EOS]


def test_a_bundle_keeps_a_state_of_one_size_and_the_shortlist(paths):
    manifest = load_bundle(paths / "bundle")
    states = {state.name: (state.kind, state.shape) for state in manifest.variant("fp32").states}
    assert states["self_state.1"] == ("recurrent", ("batch", 16))
    assert not any(kind == "self_kv" for kind, _ in states.values())
    assert manifest.shortlist
    assert manifest.source_unit == "sentence"


def test_answers_are_those_of_the_reference_alone_and_in_company(client, student):
    asked = texts(24)

    def ask(text):
        answer = client.translate(text, max_tokens=MOST, include_tokens=True, token_logprobs=True)
        return answer.tokens, answer.hypotheses[0].token_logprobs

    with ThreadPoolExecutor(12) as threads:
        together = list(threads.map(ask, asked))
    expected = [greedy(student.model, [START], source=source_of(student, text), max_tokens=MOST) for text in asked]
    assert [list(tokens) for tokens, _ in together] == expected
    assert len({tuple(tokens) for tokens in expected}) > 8, "answers vary"
    assert together[:3] == [ask(text) for text in asked[:3]]


def test_beams_keep_their_own_states(client, student):
    for text in texts(3, seed=2):
        options = {"beam_size": 4, "num_hypotheses": 4, "length_penalty": 1.0}
        answer = client.translate(text, max_tokens=MOST, include_tokens=True, **options)
        expected = beam_search(student.model, [START], source=source_of(student, text), max_tokens=MOST, **options)
        assert [hypothesis.tokens for hypothesis in answer.hypotheses] == [best.tokens for best in expected]


def test_scores_and_alignments_are_those_of_the_reference(client, student):
    text = "the dog sees a cat"
    source = source_of(student, text)
    result = client.score(text, "a cat sees")
    expected = score(student.model, [START], [*student.tokenizer.encode("a cat sees"), EOS], source=source)
    assert [token.logprob for token in result.tokens] == pytest.approx(expected, abs=1e-4)
    answer = client.translate(text, alignment="both", max_tokens=MOST, include_tokens=True)
    weights_LHTS = cross_attention(student.model, [START, *answer.tokens[:-1]], source=source)
    last_TS = weights_LHTS[-1].mean(0).numpy()
    assert np.array(answer.hypotheses[0].alignment.rows) == pytest.approx(last_TS, abs=1e-4)


def test_attention_is_reported_of_encoder_and_source(client):
    described = client.get_model("student")
    assert {pb.AttentionKind.Name(layers.kind) for layers in described.attention} == {
        "ATTENTION_KIND_ENCODER",
        "ATTENTION_KIND_CROSS",
    }


def test_a_shortlist_keeps_answers_within_it(client, student):
    text = "the dog sees"
    allowed = {0, 1, 2, *source_of(student, text), 3, 4, 5, 6}
    answer = client.translate(text, max_tokens=MOST, include_tokens=True, use_shortlist=True)
    assert set(answer.tokens) <= allowed
