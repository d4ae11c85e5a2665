"""Runs in several processes, compared with a run in this one."""

import dataclasses

import pytest
import torch

from model.architecture_config import EncoderConfig, RecurrentConfig
from model.checkpoints.checkpoint import load_checkpoint
from model.training.data.embedded import copy_examples, embedded_examples
from model.training.distributed.process_group import joined
from model.training.distributed.ranks import RanksError
from model.training.progress import Display
from model.training.schedule import batch_seed
from model.training.train import train
from tests.ranks import MODEL, TRAIN, SeededRanks, difference, history, train_in
from tests.tiny import as_decoder

WITHOUT_FAULT = ["", ""]


def whole_run(out, model=MODEL, config=TRAIN, data=None):
    """The run in this process, whose dropout is drawn by batch."""
    data = data or embedded_examples("copy")
    return train(model, config, data=data, out=out, ranks=SeededRanks(), display=Display(quiet=True))


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return whole_run(tmp_path_factory.mktemp("alone") / "run")


@pytest.mark.parametrize("shard", [pytest.param(False, marks=pytest.mark.slow), True])
def test_two_ranks_train_as_one(shard, alone, tmp_path):
    assert train_in(2, tmp_path / "run", shard=shard) == WITHOUT_FAULT
    assert difference(alone, tmp_path / "run") < 1e-5
    assert history(tmp_path / "run") == [pytest.approx(row, rel=1e-5, nan_ok=True) for row in history(alone)]


@pytest.mark.slow
def test_two_ranks_skip_the_same_merges(tmp_path):
    """Text of which several batches make an epoch, as every epoch has another segmentation."""
    config = TRAIN.replace(tokenizer="bpe", vocab_size=300, bpe_dropout=0.3)
    data = embedded_examples("kinds")
    data = dataclasses.replace(data, pairs=data.pairs[:150])
    model = MODEL.replace(max_source_len=48, max_target_len=48)
    whole = whole_run(tmp_path / "whole", model, config, data)
    assert train_in(2, tmp_path / "parts", model=model, config=config, data=data) == WITHOUT_FAULT
    assert difference(whole, tmp_path / "parts") < 1e-5
    assert history(whole)[-1][1] >= 1, "more than one epoch"


def interrupted(count, out, steps, **arguments):
    """A run that the last rank asks to stop; every rank must stop after the same step."""
    errors = train_in(count, out, stop_after=steps, **arguments)
    assert len(set(errors)) == 1
    assert errors[0].startswith("Interrupted: stopped after step ")


@pytest.mark.parametrize("counts", [(2, 1, 2), pytest.param((1, 4, 2), marks=pytest.mark.slow)])
def test_a_run_goes_on_with_another_number_of_ranks(counts, alone, tmp_path):
    out, (first, second, third) = tmp_path / "run", counts
    interrupted(first, out, 3)
    interrupted(second, out, 4, resume=True)
    assert [int(path.name[-2:]) for path in sorted((out / "states").glob("step-*"))][-2:] == [5, 7]
    assert train_in(third, out, resume=True) == [""] * third
    assert difference(alone, out) < 1e-5
    assert history(out) == [pytest.approx(row, rel=1e-5, nan_ok=True) for row in history(alone)]


@pytest.mark.slow
def test_a_run_goes_on_with_shards_and_without(alone, tmp_path):
    out = tmp_path / "run"
    interrupted(2, out, 3)
    interrupted(2, out, 4, resume=True, shard=True)
    assert train_in(2, out, resume=True) == WITHOUT_FAULT
    assert difference(alone, out) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("shard", [False, True])
def test_as_many_ranks_resume_to_the_same_bits(shard, tmp_path):
    """Three ranks add gradients in an order that the buckets of DDP decide; two could not show a difference."""
    config = TRAIN.replace(accumulate=3)
    assert train_in(3, tmp_path / "whole", config=config, shard=shard) == ["", "", ""]
    interrupted(3, tmp_path / "parts", 3, config=config, shard=shard)
    interrupted(3, tmp_path / "parts", 5, config=config, shard=shard, resume=True)
    assert train_in(3, tmp_path / "parts", config=config, shard=shard, resume=True) == ["", "", ""]
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts")]
    assert weights[0] == weights[1]


SHAPE = {key: value for key, value in MODEL.to_json().items() if key in ("d_model", "dropout", "max_source_len")}
OTHERS = {
    "experts": as_decoder(MODEL, num_experts=4, experts_per_token=2),
    "masked": EncoderConfig(
        **SHAPE, num_heads=2, d_ff=32, num_encoder_layers=1, bias=False, activation="gelu", head="masked", pooler="tanh"
    ),
    "recurrent": RecurrentConfig(**SHAPE, num_encoder_layers=1, num_decoder_layers=1, max_target_len=16),
}


@pytest.mark.slow
@pytest.mark.parametrize("shard", [False, True])
@pytest.mark.parametrize("name", OTHERS)
def test_every_architecture_trains_as_in_one_process(name, shard, tmp_path):
    whole_run(tmp_path / "whole", OTHERS[name])
    assert train_in(2, tmp_path / "parts", model=OTHERS[name], shard=shard) == WITHOUT_FAULT
    assert difference(tmp_path / "whole", tmp_path / "parts") < 1e-5


def test_an_environment_that_is_not_of_torchrun_is_refused():
    problem = r"must be numbers, as torchrun sets them; KeyError\('LOCAL_RANK'\)"
    with pytest.raises(RanksError, match=problem), joined({"RANK": "0", "WORLD_SIZE": "2"}, timeout_s=1):
        pass


def test_every_batch_of_a_run_draws_by_a_seed_of_its_own(tmp_path, monkeypatch):
    seeded = []

    def record(*drawn):
        seeded.append(drawn)
        return batch_seed(*drawn)

    monkeypatch.setattr("model.training.train.batch_seed", record)
    whole_run(tmp_path / "run", config=TRAIN.replace(steps=2))
    assert seeded == [(TRAIN.seed, step, place) for step in range(2) for place in range(4)]


def test_ranks_with_different_runs_are_refused_with_what_each_has(tmp_path):
    configs, data = [TRAIN, TRAIN.replace(seed=2)], [copy_examples(50, seed=seed) for seed in (1, 2)]
    errors = train_in(2, tmp_path / "run", config=configs, data=data)
    assert errors == 2 * [
        "RanksError: the processes were started with different runs: train.seed is 1 on rank 0, 2 on rank 1; "
        f'data is "{data[0].digest}" on rank 0, "{data[1].digest}" on rank 1; '
        "give all of them the same configuration and the same files"
    ]
    assert not (tmp_path / "run").exists()


def test_a_configuration_of_one_rank_that_cannot_be_is_compared_first(tmp_path):
    assert TRAIN.tokenizer == "words", "which has no BPE-dropout"
    errors = train_in(2, tmp_path / "run", config=[TRAIN, TRAIN.replace(bpe_dropout=0.1)])
    assert {error.partition(";")[0] for error in errors} == {
        "RanksError: the processes were started with different runs: train.bpe_dropout is 0.0 on rank 0, 0.1 on rank 1"
    }


def test_an_error_of_the_first_rank_ends_all(tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    first, second = train_in(2, tmp_path)
    assert first.startswith(f"TrainError: {tmp_path} holds other files")
    assert second == first.replace("TrainError", "RanksError")


@pytest.mark.slow
def test_the_clock_of_the_first_rank_ends_a_run_of_minutes(tmp_path):
    config = TRAIN.replace(steps=0, minutes=0.05)
    assert train_in(2, tmp_path / "run", config=config) == WITHOUT_FAULT
    metrics = load_checkpoint(tmp_path / "run").metrics
    assert 3.0 <= metrics["seconds"] < 60.0
    assert metrics["steps"] >= 1
