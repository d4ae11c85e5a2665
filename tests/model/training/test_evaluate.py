import math

import pytest
import torch

from model.config import TrainConfig
from model.reference.greedy import greedy
from model.tokenizer import Tokenizer
from model.training import evaluate
from model.training.data.examples import Batch, Examples, batches_of
from model.training.evaluate import bleu, greedy_batch, loss_per_token, translate
from tests.tiny import TEXTS, tiny_config, tiny_model, tiny_tokenizer

TOKENIZER = tiny_tokenizer()


def sources(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 20, (count,), generator=generator).tolist()
    return [torch.randint(4, TOKENIZER.vocab_size, (length,), generator=generator).tolist() for length in lengths]


@pytest.mark.parametrize(
    "changes",
    [pytest.param({}, marks=pytest.mark.slow), {"positions": "rotary", "num_kv_heads": 2, "norm": "rms"}],
)
def test_batched_translations_are_those_of_the_uncached_reference(changes, monkeypatch):
    monkeypatch.setattr(evaluate, "CAPACITY_STEP", 4)  # caches grow several times
    model = tiny_model(tiny_config(**changes))
    rows = [[*source, 2] for source in sources(24)]
    got = greedy_batch(model, [[1]] * len(rows), sources=rows, max_tokens=30, rows=9)
    assert got == [greedy(model, [1], source=row, max_tokens=30) for row in rows]
    assert len({len(output) for output in got}) > 2  # rows end at different steps, so batches shrink


@pytest.mark.parametrize("changes", [{}, {"positions": "rotary"}])
def test_batched_continuations_of_ragged_prompts_are_those_of_the_reference(changes):
    model = tiny_model(tiny_config("decoder", **changes))
    prompts = [[1, *prompt] for prompt in sources(24, seed=1)]
    got = greedy_batch(model, prompts, max_tokens=20, rows=10)
    assert got == [greedy(model, prompt, max_tokens=20) for prompt in prompts]
    assert len({len(output) for output in got}) > 2


def test_one_row_and_no_row():
    model = tiny_model(tiny_config())
    assert greedy_batch(model, [[1]], sources=[[5, 6, 2]], max_tokens=3) == [
        greedy(model, [1], source=[5, 6, 2], max_tokens=3)
    ]
    assert greedy_batch(model, [], sources=[], max_tokens=3) == []


def test_a_sequence_that_does_not_fit_is_refused():
    model = tiny_model(tiny_config("decoder"))
    assert len(greedy_batch(model, [[1] * 60], max_tokens=5)[0]) <= 5
    with pytest.raises(ValueError, match="must fit max_target_len 64, got 65 positions"):
        greedy_batch(model, [[1] * 60], max_tokens=6)


def test_translations_come_back_in_order():
    model = tiny_model(tiny_config())
    texts = [*TEXTS, "a tree", "the garden sleeps"]
    together = translate(model, TOKENIZER, texts, max_tokens=12)
    assert together == [translate(model, TOKENIZER, [text], max_tokens=12)[0] for text in texts]
    expected = greedy(model, [1], source=[*TOKENIZER.encode(texts[4]), 2], max_tokens=12)
    assert together[4] == TOKENIZER.decode(expected)
    assert translate(model, TOKENIZER, []) == []


def test_a_text_is_translated_after_the_sentences_before_it():
    tokenizer = Tokenizer.train(TEXTS, kind="words", vocab_size=64, with_separator=True)
    config = tiny_config(vocab_size=tokenizer.vocab_size, context_sentences=2, separator_id=4, max_source_len=24)
    model, (a, b, c, _) = tiny_model(config), map(tokenizer.encode, TEXTS)
    contexts = [(), [(TEXTS[1], TEXTS[2])], [(TEXTS[0], TEXTS[1]), (TEXTS[1], TEXTS[2])], [(TEXTS[0], TEXTS[0])] * 3]
    expected = [
        greedy(model, [1], source=[*a, 2], max_tokens=9),
        greedy(model, [1, *c, 4], source=[*b, 4, *a, 2], max_tokens=9),
        greedy(model, [1, *c, 4], source=[*b, 4, *a, 2], max_tokens=9),  # the first does not fit in 24 tokens
        greedy(model, [1, *a, 4], source=[*a, 4, *a, 2], max_tokens=9),
    ]
    assert len(expected[0] + expected[1]) > 2
    assert expected[0] != expected[1]
    found = translate(model, tokenizer, [TEXTS[0]] * 4, max_tokens=9, contexts=contexts)
    assert found == [tokenizer.decode(answer) for answer in expected]


def test_a_text_that_is_too_long_is_named():
    with pytest.raises(ValueError, match="text 2: must be at most 63 tokens, got 64"):
        translate(tiny_model(tiny_config()), TOKENIZER, ["a", "a " * 64])


def test_bleu_is_cased_and_carries_its_signature():
    references = ["The cat sits on the mat.", "Two dogs run across the green field."]
    perfect = bleu(references, references)
    assert perfect.score == pytest.approx(100)
    assert "case:mixed" in perfect.signature
    assert "tok:13a" in perfect.signature
    assert bleu([text.lower() for text in references], references).score < 99
    assert bleu(["x y z w"] * 2, references).score < 5
    with pytest.raises(ValueError, match="as many hypotheses as references, got 1 and 2"):
        bleu(["a"], references)


def test_loss_per_token_is_the_mean_over_tokens():
    model = tiny_model(tiny_config(dropout=0.5)).train()
    examples = Examples([(text, text) for text in TEXTS], "texts")
    train = TrainConfig(steps=1, batch_tokens=20)
    batches = batches_of(examples, TOKENIZER, model.config, train)
    assert len(batches.plan(0)) > 1
    loss = loss_per_token(model, batches)
    assert model.training  # as it was
    assert loss == loss_per_token(model, batches)  # no dropout
    model.eval()
    total, tokens = 0.0, 0
    for source, target in examples.pairs:
        ids = [*TOKENIZER.encode(target), 2]
        source_ids = [*TOKENIZER.encode(source), 2]
        states = model(torch.tensor([source_ids]), torch.tensor([len(source_ids)]), torch.tensor([[1, *ids[:-1]]]))
        log_probabilities = model.decoder.unembedding(states)[0].log_softmax(-1)
        total -= sum(log_probabilities[place, token].item() for place, token in enumerate(ids))
        tokens += len(ids)
    assert loss == pytest.approx(total / tokens, rel=1e-5)


@pytest.mark.parametrize("was_training", [True, False])
def test_a_batch_that_fails_leaves_the_model_in_its_mode(was_training):
    model = tiny_model(tiny_config("decoder")).train(was_training)
    beyond = torch.full((1, 2), model.config.vocab_size)

    class Wrong:
        dropped, tokens = 0, 2

        def plan(self, epoch):
            return [[0]]

        def load(self, keys):
            return Batch(torch.zeros(1, 0), torch.zeros(1), beyond, beyond, 2)

    with pytest.raises(IndexError):
        loss_per_token(model, Wrong())
    assert model.training is was_training


def test_an_untrained_vocabulary_costs_its_logarithm():
    model = tiny_model(tiny_config("decoder"))
    with torch.no_grad():
        model.decoder.unembedding.weight.zero_()

    class One:
        dropped, tokens = 0, 4

        def plan(self, epoch):
            return [[0]]

        def load(self, keys):
            tokens = torch.tensor([[5, 6, 7, 8]])
            return Batch(torch.zeros(1, 0), torch.zeros(1), tokens, tokens, 4)

    assert loss_per_token(model, One()) == pytest.approx(math.log(TOKENIZER.vocab_size), rel=1e-6)
