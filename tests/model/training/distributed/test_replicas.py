"""A resumed run in shards: what it restores, and the memory that this takes."""

import json
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.profiler import ProfilerActivity, profile

from model.architectures import build
from model.training.data.examples import Batch
from model.training.distributed.division import divided
from model.training.objective.optimiser import make_optimiser
from model.training.training_state import OPTIMISER, WEIGHTS, Progress, load_newest, save_state
from tests.ranks import MODEL, TRAIN, in_ranks

WIDE = MODEL.replace(d_model=64, d_ff=256, num_encoder_layers=3, num_decoder_layers=3, vocab_size=300)
CPU = torch.device("cpu")
IDS = torch.tensor([[5, 6, 2]])
BATCH = Batch(IDS, torch.tensor([3]), IDS, IDS, 3)
SETTINGS: Any = {"smoothing": 0.1, "bf16": False, "balance_weight": 0.0, "r_drop_weight": 0.0}


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    """The state of a run after one step."""
    torch.manual_seed(1)
    model = build(WIDE)
    optimiser = make_optimiser(model, TRAIN)
    torch.stack([parameter.square().sum() for parameter in model.parameters()]).sum().backward()
    optimiser.step()
    path = tmp_path_factory.mktemp("run") / "states"
    save_state(path, model, optimiser, Progress(step=1))
    return path


def resumed(ranks, states):
    """A model and its optimiser, whole, of which the first rank's are those of the state."""
    torch.manual_seed(2)
    model = build(WIDE).train()
    optimiser = make_optimiser(model, TRAIN)
    ranks.from_first(lambda: load_newest(states, model, optimiser, maps=True))
    return model, optimiser


def shards(ranks, model, optimiser):
    return divided(
        model, optimiser, ranks, shard=True, make_optimiser=lambda own: make_optimiser(own, TRAIN), device=CPU
    )


def restored(ranks, states):
    """Whether the first rank gathers what was saved."""
    model, optimiser = shards(ranks, *resumed(ranks, states)).gathered()
    if not ranks.is_first:
        return True
    path = states / "step-00000001"
    weights, moments = load_file(path / WEIGHTS), load_file(path / OPTIMISER)
    same = [torch.equal(parameter, weights[name]) for name, parameter in model.named_parameters()]
    for name, parameter in model.named_parameters():
        state = optimiser.state[parameter]
        assert sorted(state) == ["exp_avg", "exp_avg_sq", "step"]
        same += [torch.equal(tensor, moments[f"{key}/{name}"]) for key, tensor in state.items()]
    return all(same)


def test_shards_are_parts_of_the_same_bits(states):
    assert in_ranks(2, restored, states) == [True, True]


def allocated(profiler, file):
    """The most bytes that were allocated within a profile, and those that were left at its end."""
    profiler.export_chrome_trace(str(file))
    events = [event for event in json.loads(file.read_text())["traceEvents"] if event["name"] == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event["ts"]):
        held += event["args"]["Bytes"]
        most = max(most, held)
    return most, held


def measured(ranks, states, folder):
    """Bytes that dividing a resumed run takes at most, beside the model and the state in main memory, and that the
    first step does. Of the first rank they have the copy in them by which it saves states."""
    model, optimiser = resumed(ranks, states)
    mapped = list(optimiser.state.values())  # so that its end is in no profile
    settings: Any = {"activities": [ProfilerActivity.CPU], "profile_memory": True}
    with profile(**settings) as resuming:
        replica = shards(ranks, model, optimiser)
    del model, optimiser
    with profile(**settings) as stepping:
        replica.backward(BATCH, 3, is_last=True, seed=1, **SETTINGS)
        replica.optimiser.step()
    assert len(mapped) == (len(list(replica.model.parameters())) if ranks.is_first else 0)
    most, held = allocated(resuming, folder / f"resuming{ranks.rank}.json")
    return most, held + allocated(stepping, folder / f"stepping{ranks.rank}.json")[0]


def test_resuming_takes_no_more_memory_than_a_step(states, tmp_path):
    whole = sum(tensor.nbytes for tensor in load_file(states / "step-00000001" / WEIGHTS).values())
    first, second = in_ranks(2, measured, states, tmp_path)
    for resuming, stepping in (first, second):
        assert resuming < stepping
    assert 1.5 * whole < second[0] < 2.0 * whole, "half of the weights and of both moments, and one tensor"
    assert first[0] < 3.0 * whole, "and the copy in main memory that saves states"
