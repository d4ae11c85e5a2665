"""The checkpoint of an ensemble: what is in it, and which members are refused."""

import pytest
import torch

from model.architectures import build
from model.checkpoints.atomic_write import DIGESTS, digest_of_file
from model.checkpoints.checkpoint import CheckpointError, load_checkpoint, save_checkpoint, weights_of
from model.checkpoints.ensemble_checkpoint import save_ensemble
from model.tokenizer import Tokenizer
from tests.tiny import tiny_config, tiny_model, tiny_tokenizer


def saved(path, config, seed, tokenizer=None):
    model = tiny_model(config, seed=seed)
    lineage = {"seed": seed, "data": "texts.tsv", "data_sha256": "00"}
    save_checkpoint(
        path, config, weights_of(model), tokenizer=tokenizer or tiny_tokenizer(), train=None,
        metrics={"bleu": float(seed)}, lineage=lineage,
    )  # fmt: skip
    return path


def test_it_loads_as_one_model_with_the_lineage_of_its_members(tmp_path):
    members = [saved(tmp_path / str(seed), tiny_config(dropout=0.1), seed) for seed in (1, 2)]
    save_ensemble(members, tmp_path / "both")
    loaded = load_checkpoint(tmp_path / "both")
    source, lengths, target = torch.tensor([[5, 6, 2]]), torch.tensor([3]), torch.tensor([[1, 5]])
    with torch.no_grad():
        found = loaded.model.decoder.unembedding(loaded.model(source, lengths, target)).log_softmax(-1)
        each = [load_checkpoint(path).model for path in members]
        mean = sum(one.decoder.unembedding(one(source, lengths, target)).softmax(-1) for one in each) / 2
    torch.testing.assert_close(found, mean.log(), rtol=1e-4, atol=1e-4)
    assert loaded.lineage["data"] == "texts.tsv"
    assert [member["seed"] for member in loaded.lineage["members"]] == [1, 2]
    assert loaded.lineage["members"][1]["checkpoint_sha256"] == digest_of_file(members[1] / DIGESTS)
    assert loaded.lineage["members"][1]["metrics"] == {"bleu": 2.0}


def test_members_that_do_not_fit_are_refused_and_nothing_is_written(tmp_path):
    first = saved(tmp_path / "first", tiny_config(), 1)
    decoder = saved(tmp_path / "decoder", tiny_config("decoder"), 1)
    wide = saved(tmp_path / "wide", tiny_config(d_ff=32), 1)
    words = Tokenizer.train(("other words",), kind="words", vocab_size=64)
    strange = saved(tmp_path / "strange", tiny_config(), 1, words)
    for other, problem in (
        (decoder, "only models of architecture encoder_decoder form ensembles, got decoder"),
        (wide, "d_ff: must be the same in all members of an ensemble: member 2 has 32, member 1 64"),
        (strange, "the same --data and --validation, or --tokenizer .*first/tokenizer.json"),
        (first, "first: is the same checkpoint as .*first; give each member once"),
        (tmp_path / "nothing", "no such directory"),
    ):
        with pytest.raises(CheckpointError, match=problem):
            save_ensemble([first, other], tmp_path / "out")
    with pytest.raises(CheckpointError, match="at least two members, got 1"):
        save_ensemble([first], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    second = saved(tmp_path / "second", tiny_config(), 2)
    save_ensemble([first, second], tmp_path / "out")
    with pytest.raises(CheckpointError, match="already holds a finished checkpoint"):
        save_ensemble([first, second], tmp_path / "out")
    with pytest.raises(CheckpointError, match="is an ensemble already"):
        save_ensemble([first, tmp_path / "out"], tmp_path / "more")


def test_the_class_follows_from_the_configuration():
    assert type(build(tiny_config())).__name__ == "EncoderDecoder"
    assert type(build(tiny_config(ensemble_size=2))).__name__ == "Ensemble"
