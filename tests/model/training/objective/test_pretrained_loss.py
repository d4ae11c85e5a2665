"""Imported models in training: on one batch, the loss and the gradients are those of `transformers`."""

import pytest
import torch

from model.architectures import build
from model.pretrained.import_checkpoint import import_model
from model.tokenizer import Tokenizer
from model.training.data.encoder_data import encoder_batches
from model.training.data.examples import IGNORED, Examples, batches_of
from model.training.objective.loss import batch_loss
from tests.model.training.test_start import TUNED

pytest.importorskip("transformers")
from tests.decoders import make_decoder
from tests.pretrained_encoder import saved as save_encoder
from tests.pretrained_encoder import theirs_of as make_encoder
from tests.pretrained_seq2seq import VARIANTS, make

WORDS = [f"w{number}" for number in range(4, 90)]
TEXTS = [" ".join(WORDS[start : start + length]) for start, length in ((0, 9), (7, 1), (20, 14), (30, 5), (60, 12))]
TOKENIZER = Tokenizer.train(WORDS, kind="words", vocab_size=90)
ROUNDING = 5e-5  # of gradients in float32, by their norms


def ours_of(theirs, path):
    theirs.save_pretrained(path)
    taken = import_model(path)
    ours = build(taken.config).eval()
    ours.load_state_dict(taken.weights)
    return ours


def batch_of(model, make_batches=batches_of):
    config = TUNED.replace(batch_tokens=4096)
    examples = Examples(list(zip(TEXTS, TEXTS[::-1], strict=True)), "texts")
    return make_batches(examples, TOKENIZER, model.config, config).load(range(len(TEXTS)))


def check_the_same(expected, table, ours, batch, name):
    """Loss, and gradient of the token table but for its padding, whose row the library never trains as an input."""
    loss = batch_loss(ours, batch).smoothed / batch.tokens
    torch.testing.assert_close(loss, expected.loss, rtol=2e-6, atol=0)
    loss.backward()
    expected.loss.backward()
    own, pad_id = ours.get_parameter(name).grad, ours.config.pad_id
    assert own.abs().max() > 0.01
    kept = torch.arange(len(own)) != pad_id
    difference = own[kept] - table.weight.grad[kept]
    assert difference.norm() < ROUNDING * own.norm()


CASES = [(name, None) for name in VARIANTS if name not in ("mbart", "m2m_100")] + [("bart", 3)]


@pytest.mark.parametrize(("variant", "forced"), CASES)
def test_the_loss_of_an_encoder_decoder_is_that_of_transformers(variant, forced, tmp_path):
    theirs = make(variant)
    theirs.generation_config.forced_bos_token_id = forced
    ours = ours_of(theirs, tmp_path)
    batch = batch_of(ours)
    mask = (torch.arange(batch.source_BS.shape[1]) < batch.lengths_B[:, None]).long()
    first = set(batch.target_BT[:, 0].tolist())
    assert (first == {forced}) == (forced is not None)
    expected = theirs(input_ids=batch.source_BS, attention_mask=mask, labels=batch.target_BT)
    table = theirs.get_decoder().get_input_embeddings()
    check_the_same(expected, table, ours, batch, "decoder.embedding.tokens.weight")


@pytest.mark.parametrize("name", ["gpt2", "gpt2 untied", "llama"])
def test_the_loss_of_a_decoder_is_that_of_transformers(name, tmp_path):
    theirs = make_decoder(name)
    ours = ours_of(theirs, tmp_path)
    batch = batch_of(ours)
    given = batch.input_BT[:, :1]
    labels = torch.cat((given, batch.target_BT), dim=1)  # the library predicts the next of these
    ids = labels.where(labels != IGNORED, ours.config.pad_id)
    expected = theirs(input_ids=ids, attention_mask=(labels != IGNORED).long(), labels=labels)
    check_the_same(expected, theirs.get_input_embeddings(), ours, batch, "decoder.embedding.tokens.weight")


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_the_loss_of_a_masked_model_is_that_of_transformers(kind, tmp_path):
    theirs = make_encoder(kind, "ForMaskedLM", {"vocab_size": 101})
    save_encoder(theirs, tmp_path)
    taken = import_model(tmp_path)
    ours = build(taken.config).eval()
    ours.load_state_dict(taken.weights)
    batch = batch_of(ours, encoder_batches)
    assert batch.tokens > 5
    mask = (torch.arange(batch.source_BS.shape[1]) < batch.lengths_B[:, None]).long()
    expected = theirs(input_ids=batch.source_BS, attention_mask=mask, labels=batch.target_BT)
    check_the_same(expected, theirs.get_input_embeddings(), ours, batch, "encoder.embedding.tokens.weight")
