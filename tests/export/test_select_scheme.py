"""Which scheme is taken, among small doubles whose answers, sizes and speeds are written down."""

import itertools
import re
from typing import Any

import numpy as np
import pytest

from export.select_scheme import (
    MAX_LOSS,
    SchemeSelectionError,
    read_blocks,
    read_steps,
    select_scheme,
)
from export.texts import Development
from export.verification.ort_graphs import Prediction
from tests.tiny import TEXTS, tiny_config, tiny_tokenizer

EOS = 2


class FakeClock:
    """Time passes only when a double advances it."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


class Copying:
    """Graphs that answer a source with its own tokens, but for those that they get wrong, and a step of known length.

    Without a source they find the token that follows is the one after the last, with `probability`.
    """

    def __init__(self, clock, *, wrong=(), step_s=1.0, probability=0.9, config=None):
        self.clock, self.wrong, self.step_s, self.probability = clock, set(wrong), step_s, probability
        self.config, self.calls = config or tiny_config(), []

    roles = ("encode", "decode")

    def encode(self, sources):
        longest = max(map(len, sources))
        rows = np.array([[*source, *[EOS] * (longest - len(source))] for source in sources])
        return {"encoder_states": rows, "cross_key.0": rows}

    def buffers(self, rows, capacity):
        return {"self_key.0": np.zeros((rows, capacity))}

    def decode(self, blocks, starts, buffers, cross, *, top_k=1, requested=None):
        self.calls.append(len(blocks))
        vocab = self.config.vocab_size
        best = []
        for row, at in requested or [(row, len(block) - 1) for row, block in enumerate(blocks)]:
            block, place = blocks[row][: at + 1], starts[row] + at
            if "cross_key.0" in cross:
                source = cross["cross_key.0"][row]
                token = int(source[place]) if place < len(source) else EOS
                token = EOS if token in self.wrong else token
            else:
                token = (block[-1] + 1) % vocab
            best.append(token)
        others = (1 - self.probability) / (vocab - 1)
        logprobs = np.log(np.full((len(best), vocab), others, np.float32))
        logprobs[range(len(best)), best] = np.log(self.probability)
        ids = np.argsort(-logprobs, axis=1, kind="stable")[:, :top_k]
        return Prediction(logprobs, logprobs, np.zeros(len(best)), np.take_along_axis(logprobs, ids, 1), ids)

    def step(self, blocks, starts, buffers, cross, *, top_k=1):
        def run():
            self.clock.now_s += self.step_s

        return run, self.decode(blocks, starts, buffers, cross, top_k=top_k)


WORD = tiny_tokenizer().encode("tree")[0]


def chosen(schemes, development, *, architecture="encoder_decoder", **options):
    clock = FakeClock()
    config = tiny_config(architecture)
    doubles: dict[str, Any] = {
        name: Copying(clock, config=config, **fields) for name, fields in {"fp32": {}, **schemes}.items()
    }
    baseline = doubles.pop("fp32")
    return select_scheme(baseline, doubles, development, tiny_tokenizer(), config, clock=clock, **options)


TRANSLATED = Development(TEXTS, TEXTS, "dev.tsv")


def test_the_first_form_without_loss_is_taken_however_fast_it_is_just_now():
    choice = chosen(
        {"w8a8-static": {"step_s": 0.5}, "w8a8-dynamic": {"step_s": 0.25}, "slow": {"step_s": 2.0}}, TRANSLATED
    )
    assert choice.scheme == "w8a8-static"
    assert [(figures.scheme, figures.chosen) for figures in choice.figures] == [
        ("fp32", False),
        ("w8a8-static", True),
        ("w8a8-dynamic", False),
        ("slow", False),
    ]
    fp32, static, row, slow = choice.figures
    assert (fp32.exact_match, fp32.bleu_loss, fp32.evaluation_samples) == (1.0, 0.0, len(TEXTS))
    assert fp32.bleu == pytest.approx(100.0)
    assert (fp32.tokens_per_s, fp32.single_stream_tokens_per_s) == (32.0, 1.0)
    assert (static.tokens_per_s, row.tokens_per_s, slow.tokens_per_s) == (64.0, 128.0, 16.0)


def test_a_form_that_verification_would_refuse_gives_way_to_the_next():
    schemes = {"w8a8-static": {"step_s": 0.5}, "w8a8-dynamic": {}, "slow": {"step_s": 2.0}}
    choice = chosen(schemes, TRANSLATED, problem_of=lambda graphs: "long texts" if graphs.step_s == 0.5 else "")
    assert (choice.scheme, choice.passed_over) == ("w8a8-dynamic", {"w8a8-static": "long texts"})
    assert [figures.scheme for figures in choice.figures if figures.chosen] == ["w8a8-dynamic"]
    assert chosen(schemes, TRANSLATED, problem_of=lambda _: "long texts").scheme == "slow"


def test_a_faster_form_that_loses_too_much_is_not_taken():
    choice = chosen({"w8a8-static": {"step_s": 0.25, "wrong": [WORD]}, "w8a8-dynamic": {"step_s": 0.5}}, TRANSLATED)
    assert choice.scheme == "w8a8-dynamic"
    static = choice.figures[1]
    assert static.exact_match == 0.75
    assert static.bleu_loss > MAX_LOSS["BLEU"]
    assert chosen({"w8a8-static": {"wrong": [WORD]}}, TRANSLATED, max_loss=100.0).scheme == "w8a8-static"


def test_when_every_form_loses_too_much_each_is_named_with_its_figures():
    with pytest.raises(SchemeSelectionError) as refusal:
        chosen({"w8a8-dynamic": {"wrong": [WORD]}, "w8a8-static": {"wrong": range(4, 30)}}, TRANSLATED)
    message = str(refusal.value)
    assert re.search(r"no scheme is within 0\.3 BLEU of fp32 \(BLEU 100\.00, .* on dev\.tsv", message)
    assert re.search(r"w8a8-dynamic loses \d.* \(BLEU \d+\.\d\d, 75\.0% of 4 answers equal", message)
    assert re.search(r"static loses \d.*, 0\.0% of 4 answers equal", message)
    assert "fix: " in message


def test_without_references_answers_that_differ_are_counted():
    sources = Development(TEXTS)
    choice = chosen({"w8a8-static": {"wrong": [WORD]}}, sources, max_loss=0.25)
    assert (choice.figures[1].bleu, choice.figures[1].exact_match) == (None, 0.75)
    with pytest.raises(SchemeSelectionError, match=r"within 0\.2 answers that differ.* w8a8-static loses 0\.25"):
        chosen({"w8a8-static": {"wrong": [WORD]}}, sources, max_loss=0.2)


def test_a_model_that_continues_text_is_measured_in_nats_per_token():
    texts = Development(TEXTS)
    choice = chosen({"w4-block32": {"probability": 0.89}}, texts, architecture="decoder")
    fp32, four_bits = choice.figures
    assert (fp32.exact_match, fp32.bleu) == (None, None)
    assert four_bits.equal_tokens == 1.0
    # Nearly every next token is not the one that the double thinks of: less sure of that, it loses less.
    assert four_bits.nats_loss < 0
    assert fp32.nats_per_token > four_bits.nats_per_token
    with pytest.raises(SchemeSelectionError, match=r"within 0\.1 nats per token .* w4-block32 loses "):
        chosen({"w4-block32": {"probability": 0.99}}, texts, architecture="decoder")


@pytest.mark.parametrize(("read", "calls"), [(read_blocks, [3]), (read_steps, [3, 2, 1, 1])])
def test_texts_of_many_lengths_are_read_to_their_ends_and_no_further(read, calls):
    scheme: Any = Copying(FakeClock(), config=tiny_config("decoder"))
    texts = [(1, 5, 6), (1, 5, 9, 10, 11), (1, 7)]
    readings = read(scheme, texts)
    unlikely = 0.1 / (tiny_config().vocab_size - 1)
    for text, reading in zip(texts, readings, strict=True):
        follows = [b == a + 1 for a, b in itertools.pairwise(text)]
        assert reading.best == [token + 1 for token in text[:-1]]
        assert reading.nats == pytest.approx(-sum(np.log(0.9 if right else unlikely) for right in follows), rel=1e-5)
    assert scheme.calls == calls


def test_the_loss_has_a_standard_error():
    """Three of four answers are right: the deviation of 1, 1, 1, 0 over the root of 4."""
    choice = chosen({"w8a8-static": {"wrong": [WORD]}}, Development(TEXTS), max_loss=1.0)
    assert choice.errors == {"fp32": 0.0, "w8a8-static": 0.25}
    with pytest.raises(SchemeSelectionError, match=r"w8a8-static loses 0\.25 ± 0\.25 .*with --max-loss 0\.25"):
        chosen({"w8a8-static": {"wrong": [WORD]}}, Development(TEXTS), max_loss=0.1)
    texts = chosen({"w4-block32": {"probability": 0.89}}, Development(TEXTS), architecture="decoder")
    assert texts.errors["fp32"] == 0.0
    assert 0 < texts.errors["w4-block32"] < 0.1


def test_text_that_the_model_cannot_read_is_no_development_text():
    with pytest.raises(SchemeSelectionError, match=r"dev\.txt: no text in it can be read by this model, of 1; fix: "):
        chosen({"w8a8-dynamic": {}}, Development(["tree " * 80], (), "dev.txt"))


def test_references_must_be_as_many_as_texts():
    with pytest.raises(ValueError, match="one reference a text or none, got 1 for 2"):
        Development(["a", "b"], ["c"])
