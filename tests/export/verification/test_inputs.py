"""Inputs for verification stay within what the model takes, however little that is."""

import pytest

from export.verification.inputs import MAX_LENGTH, predicted_places, sample_inputs
from model.config import SpecialTokenTemplate
from tests.tiny import TEXTS, tiny_config, tiny_tokenizer


@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder"])
@pytest.mark.parametrize("longest", [1, 2, 17, 64, 2000])
def test_samples_fit_the_model(architecture, longest):
    config = tiny_config(architecture, max_source_len=longest, max_target_len=longest)
    samples = sample_inputs(config, tiny_tokenizer(), TEXTS)
    ids = {token for sequence in (*samples.sources, *samples.targets, samples.longest_target) for token in sequence}
    assert ids <= set(range(config.vocab_size))
    assert max(map(len, samples.targets)) <= longest
    assert len(samples.longest_target) == min(longest, MAX_LENGTH)
    assert all(target[0] == config.bos_id for target in samples.targets)
    if config.has_encoder:
        assert len(samples.sources) == len(samples.targets)
        assert all(source[-1] == config.eos_id and len(source) <= longest for source in samples.sources)
        assert len(samples.longest_source) == min(longest, MAX_LENGTH)
        assert max(len(source) for group in samples.joined for source in group) == min(longest, MAX_LENGTH)
    else:
        assert samples.sources == ()


def test_samples_are_always_the_same_and_ragged():
    samples = sample_inputs(tiny_config())
    assert samples == sample_inputs(tiny_config())
    assert len({len(source) for source in samples.sources}) > 5
    assert min(map(len, samples.targets)) == 1
    assert samples.describe() == "8 sources of 1..40 tokens, 8 targets of 1..23 tokens"


def test_sentences_come_first():
    tokenizer = tiny_tokenizer()
    translation, generation = (
        sample_inputs(tiny_config(), tokenizer, TEXTS),
        sample_inputs(tiny_config("decoder"), tokenizer, TEXTS),
    )
    assert translation.sources[0] == (*tokenizer.encode(TEXTS[0]), 2)
    assert generation.targets[1] == (1, *tokenizer.encode(TEXTS[1]))


def test_texts_are_joined_to_ever_longer_sources():
    tokenizer = tiny_tokenizer()
    samples = sample_inputs(tiny_config(max_source_len=50), tokenizer, TEXTS[:2])
    assert [[len(source) for source in group] for group in samples.joined] == [[21] * 8, [41] * 4, [50] * 3]
    stream = [token for text in TEXTS[:2] for token in tokenizer.encode(text)] * 50
    assert samples.joined[1][:2] == ((*stream[:40], 2), (*stream[40:80], 2))


def test_samples_have_the_frames_of_the_model():
    framing = SpecialTokenTemplate(source_prefix=(5,), source_suffix=(6, 2), target_prefix=(2, 7))
    samples = sample_inputs(tiny_config(special_token_template=framing), tiny_tokenizer(), TEXTS)
    assert {(source[0], *source[-2:]) for source in (*samples.sources, samples.longest_source)} == {(5, 6, 2)}
    assert {target[:2] for target in (*samples.targets, samples.longest_target)} == {(2, 7)}
    assert len(samples.longest_source) == len(samples.longest_target) == 64
    bare = sample_inputs(tiny_config("decoder", special_token_template=SpecialTokenTemplate()), tiny_tokenizer(), TEXTS)
    assert bare.targets[0] == tuple(tiny_tokenizer().encode(TEXTS[0]))
    assert min(map(len, bare.targets)) == 1


def test_predicted_places_are_inside_their_text():
    assert [predicted_places(tuple(range(length))) for length in (1, 2, 3, 9)] == [(0,), (0, 1), (0, 1, 2), (0, 4, 8)]
