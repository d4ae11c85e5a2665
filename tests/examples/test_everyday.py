"""The model and the text that the demo starts from."""

import pytest

from cli.demo import EVERYDAY, LEAST_BLEU
from model.checkpoints.checkpoint import load_checkpoint
from model.training.data.text_files import read_tsv
from model.training.evaluate import bleu, translate

SAMPLE = 200


@pytest.fixture(scope="module")
def everyday():
    return load_checkpoint(EVERYDAY / "checkpoint")


def test_it_translates_everyday_sentences(everyday):
    pairs = read_tsv([EVERYDAY / "test.tsv"]).pairs[:SAMPLE]
    answers = translate(everyday.model, everyday.tokenizer, [source for source, _ in pairs])
    assert bleu(answers, [target for _, target in pairs]).score > LEAST_BLEU


def test_no_sentence_of_the_test_is_among_the_training_pairs():
    train, test = (read_tsv([EVERYDAY / name]).pairs for name in ("train.tsv.gz", "test.tsv"))
    for side in (0, 1):
        assert not {pair[side].casefold() for pair in train} & {pair[side].casefold() for pair in test}


def test_its_origin_is_told(everyday):
    assert everyday.lineage["weights"] == "rounded to float16"
    assert "CC BY 2.0" in (EVERYDAY / "README.md").read_text(encoding="utf-8")
