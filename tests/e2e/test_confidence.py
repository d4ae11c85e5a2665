"""Confidence over the network: what a real server computes from the log-probabilities that it also returns."""

import math
from pathlib import Path

import pytest

from export.bundle.adequacy import traits_of
from export.bundle.directory import load_manifest
from export.bundle.manifest import TOKENIZER
from glossa.client import Client, ClientError
from model.tokenizer import Tokenizer
from tests.bundles import make
from tests.e2e.process import serving
from tests.tiny import TEXTS

KEPT = Path(make.__file__).parent
BUNDLES = {"sure": KEPT / "format-12/bundle", "old": KEPT / "format-11/bundle", "plain": KEPT / "format-9/bundle"}


@pytest.fixture(scope="module", params=[pytest.param("fp32", marks=pytest.mark.slow), "int8"])
def precision(request):
    return request.param


@pytest.fixture(scope="module")
def client(precision):
    models = {name: str(bundle) for name, bundle in BUNDLES.items()}
    with serving(models=models, precision=precision) as server, Client(server.address) as client:
        yield client


def by_hand(answer, text, name, precision):
    """The confidences of words and sentence from an answer's log-probabilities; every token of it is a word or none."""
    manifest = load_manifest(BUNDLES[name])
    calibration, source = manifest.calibrations[precision], Tokenizer.load(BUNDLES[name] / TOKENIZER).encode(text)
    hypothesis = answer.hypotheses[0]
    words, waiting = [], 0.0
    for token in hypothesis.token_logprobs:
        waiting += token.logprob
        if token.text.strip():
            words.append(calibration.words.map(math.exp(waiting)))
            waiting = 0.0
    if not words:
        return [], 0.0
    tokens, logprobs = hypothesis.tokens, [token.logprob for token in hypothesis.token_logprobs]
    adequacy = 1.0
    if calibration.adequacy is not None:
        adequacy = calibration.adequacy(traits_of(source, len(text), tokens, logprobs, manifest.tokens.ends))
        assert 0 < adequacy < 1
    return words, calibration.sentences.map(adequacy * sum(words) / len(words))


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("name", ["sure", "old"])
def test_confidence_is_the_map_of_the_log_probabilities(client, precision, name, beam_size):
    asked = {"confidence": True, "token_logprobs": True, "include_tokens": True, "max_tokens": 12}
    for text in TEXTS:
        answer = client.translate(text, model=name, beam_size=beam_size, **asked)
        words, sentence = by_hand(answer, text, name, precision)
        assert [word.confidence for word in answer.confidence.words] == pytest.approx(words, rel=1e-5)
        assert answer.confidence.sentence == pytest.approx(sentence, rel=1e-5)
        assert answer.confidence.calibrated
        assert [answer.text[slice(*word.span)] for word in answer.confidence.words] == answer.text.split()


def test_a_stream_ends_with_the_same_confidence(client):
    for text in TEXTS:
        *_, last = client.stream_translate(text, model="sure", confidence=True, max_tokens=12)
        whole = client.translate(text, model="sure", confidence=True, max_tokens=12)
        assert last.answer.confidence == whole.confidence
        assert last.answer.text == whole.text == client.translate(text, model="sure", max_tokens=12).text


def test_models_report_whether_they_are_calibrated(client, precision):
    calibration, measured = client.get_model("sure").calibration, load_manifest(BUNDLES["sure"]).calibrations[precision]
    assert (calibration.samples, calibration.method) == (measured.samples, "isotonic")
    assert (calibration.ece_before, calibration.ece_after) == (measured.words.ece_before, measured.words.ece_after)
    assert not client.get_model("plain").HasField("calibration")
    with pytest.raises(ClientError, match="export it with --calibrate") as refused:
        client.translate(TEXTS[0], model="plain", confidence=True)
    assert refused.value.code == "FAILED_PRECONDITION"
    assert client.translate(TEXTS[0], model="plain").confidence is None
