import errno
import json
import warnings
from pathlib import Path

import pytest
import safetensors.torch
import torch

from model.architecture_config import EncoderDecoderConfig
from model.architectures import build
from model.checkpoints.checkpoint import CheckpointError
from model.config import TrainConfig
from model.fine_tuning import FineTuning
from model.training.objective.optimiser import make_optimiser
from model.training.training_state import (
    DamagedStateWarning,
    Progress,
    TrainError,
    average_states,
    claim,
    list_states,
    load_newest,
    prune,
    run_id,
    save_state,
)
from tests.full_disk import failures

MODEL = EncoderDecoderConfig(
    d_model=16, num_heads=2, d_ff=32, num_encoder_layers=1, num_decoder_layers=1, vocab_size=20
)
TRAIN = TrainConfig(steps=1)
IDENTITY = {"model": {"d_ff": 32}, "train": {"seed": 1}, "data": "a", "validation": None}


def started():
    """A model and its optimiser after one step."""
    torch.manual_seed(1)
    model = build(MODEL)
    optimiser = make_optimiser(model, TRAIN)
    torch.stack([parameter.sum() for parameter in model.parameters()]).sum().backward()
    optimiser.step()
    return model, optimiser


def test_states_of_interruptions_are_kept_only_while_newest(tmp_path):
    for step in (4, 5, 10, 12, 15, 17):
        (tmp_path / f"step-{step:08d}").mkdir()
    prune(tmp_path, keep=2, every=5)
    assert [path.name for path in list_states(tmp_path)] == ["step-00000010", "step-00000015", "step-00000017"]
    (tmp_path / "step-00000020").mkdir()
    prune(tmp_path, keep=2, every=5)
    assert [path.name for path in list_states(tmp_path)] == ["step-00000015", "step-00000020"]


def test_a_state_that_cannot_be_deleted_is_hidden_and_deleted_later(tmp_path, monkeypatch):
    for step in (1, 2, 3):
        (tmp_path / f"step-{step:08d}").mkdir()

    def fails(path):
        raise OSError(errno.EIO, "Input/output error", str(path))

    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", fails)
        with pytest.raises(OSError, match="Input/output error"):
            prune(tmp_path, keep=2, every=1)
    assert [path.name for path in list_states(tmp_path)] == ["step-00000002", "step-00000003"]
    assert (tmp_path / ".step-00000001.deleted").exists()
    prune(tmp_path, keep=2, every=1)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_full_disk_keeps_every_earlier_state(tmp_path):
    model, optimiser = started()
    save_state(tmp_path, model, optimiser, Progress(step=1))
    optimiser.step()
    for error in failures(lambda disk: save_state(tmp_path, model, optimiser, Progress(step=2), disk)):
        assert isinstance(error, CheckpointError)
        assert "cannot be saved: No space left on device" in str(error)
        assert "what was saved before is intact" in str(error)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = load_newest(tmp_path, build(model.config), make_optimiser(model, TRAIN))
        assert found is not None
        assert found.step in (1, 2)  # 2: only the last sync, of the finished directory's name, failed
        assert not list(tmp_path.glob(".*"))
    assert [path.name for path in list_states(tmp_path)] == ["step-00000001", "step-00000002"]


def test_a_state_holds_weights_moments_generator_and_progress(tmp_path):
    model, optimiser = started()
    progress = Progress(step=3, elapsed_s=0.1 + 0.2, history=[{"step": 3, "train_loss": 1 / 3}])
    save_state(tmp_path, model, optimiser, progress)
    expected = torch.rand(4)
    torch.manual_seed(99)
    other = build(MODEL)
    restored = make_optimiser(other, TRAIN)
    assert load_newest(tmp_path, other, restored) == progress
    assert torch.equal(torch.rand(4), expected)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert all(torch.equal(restored.state[theirs][name], value) for name, value in optimiser.state[mine].items())


def test_a_saved_state_reads_as_the_library_would_write_it(tmp_path):
    model, optimiser = started()
    path = save_state(tmp_path, model, optimiser, Progress(step=1))
    moments = optimiser.state[model.decoder.norm.weight]
    read = safetensors.torch.load((path / "optimiser.safetensors").read_bytes())
    assert torch.equal(read["generator.cpu"], torch.get_rng_state())
    assert torch.equal(read["exp_avg/decoder.norm.weight"], moments["exp_avg"])
    assert torch.equal(read["step/decoder.norm.weight"], moments["step"])


def test_the_average_is_the_mean_of_the_last_undamaged_states(tmp_path):
    model, optimiser = started()
    weight = model.decoder.norm.weight
    for step, value in ((1, 8.0), (2, 1.0), (3, 3.0), (4, 100.0)):
        with torch.no_grad():
            weight.fill_(value)
        save_state(tmp_path, model, optimiser, Progress(step=step))
    (tmp_path / "step-00000004" / "model.safetensors").write_bytes(b"x")
    with pytest.warns(DamagedStateWarning, match="left out of the average"):
        assert average_states(tmp_path, 3, model) == 2
    assert torch.equal(weight, torch.full_like(weight, 2.0))


@pytest.mark.parametrize("maps", [True, False])
def test_moments_are_mapped_from_their_file_only_on_request(maps, tmp_path):
    model, optimiser = started()
    file = save_state(tmp_path / "states", model, optimiser, Progress(step=1)) / "optimiser.safetensors"
    load_newest(tmp_path / "states", model, optimiser, maps=maps)
    lines = Path("/proc/self/maps").read_text().splitlines()
    ranges = [line.split()[0].split("-") for line in lines if line.endswith(str(file))]
    moments = [optimiser.state[parameter]["exp_avg"].data_ptr() for parameter in model.parameters()]
    found = [any(int(start, 16) <= place < int(end, 16) for start, end in ranges) for place in moments]
    assert found == [maps] * len(moments)


def test_a_directory_belongs_to_one_run(tmp_path):
    claim(tmp_path / "run", IDENTITY, resume=False)
    claim(tmp_path / "run", IDENTITY, resume=True)
    with pytest.raises(TrainError, match="holds another training run"):
        claim(tmp_path / "run", IDENTITY, resume=False)
    with pytest.raises(TrainError, match=r"was started with d_ff=32 in its model configuration, got 64"):
        claim(tmp_path / "run", {**IDENTITY, "model": {"d_ff": 64}}, resume=True)
    written = json.loads((tmp_path / "run" / "states" / "run.json").read_text())
    assert {name: value for name, value in written.items() if name != "id"} == IDENTITY


def test_runs_of_one_identity_differ_in_their_ids(tmp_path):
    assert run_id(tmp_path / "one") == ""
    for name in ("one", "two"):
        claim(tmp_path / name, IDENTITY, resume=False)
    known = run_id(tmp_path / "one")
    claim(tmp_path / "one", IDENTITY, resume=True)
    assert run_id(tmp_path / "one") == known != run_id(tmp_path / "two")


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"fine_tuning": {"freeze": ["encoder.*"]}}, r"freeze=\['encoder\.\*'\] in its fine_tuning .*, got \[\]"),
        ({"fine_tuning": FineTuning(patience=3).to_json()}, "patience=3 in its fine_tuning configuration, got 0"),
        ({"base": "ab"}, "other base: SHA-256 ab, got None"),
        ({"tokenizer": "ab"}, "other tokenizer: SHA-256 ab, got None"),
        ({"new_head": True}, r"a new head, got none \(--head\); resume with the same one"),
    ],
)
def test_what_one_of_two_runs_lacks_is_a_difference(tmp_path, part, message):
    claim(tmp_path / "run", {**IDENTITY, **part}, resume=False)
    claim(tmp_path / "run", {**IDENTITY, **part}, resume=True)
    with pytest.raises(TrainError, match=f"was started with {message}"):
        claim(tmp_path / "run", IDENTITY, resume=True)
    claim(tmp_path / "plain", IDENTITY, resume=False)
    claim(tmp_path / "plain", {**IDENTITY, "fine_tuning": FineTuning().to_json()}, resume=True)
    with pytest.raises(TrainError, match="was started with"):
        claim(tmp_path / "plain", {**IDENTITY, **part}, resume=True)


def test_a_setting_that_an_earlier_version_lacked_has_its_default(tmp_path):
    settings = TrainConfig(steps=9).to_json()
    del settings["bpe_dropout"]
    claim(tmp_path, {**IDENTITY, "train": settings}, resume=False)
    claim(tmp_path, {**IDENTITY, "train": TrainConfig(steps=9).to_json()}, resume=True)
    with pytest.raises(TrainError, match=r"was started with bpe_dropout=0.0 in its train configuration, got 0.1"):
        claim(tmp_path, {**IDENTITY, "train": TrainConfig(steps=9, bpe_dropout=0.1).to_json()}, resume=True)


@pytest.mark.parametrize("text", ["{", "[]", "5", '{"model": []}', '{"model": {}, "train": 5}', "{}"])
def test_a_damaged_description_of_the_run_is_named(tmp_path, text):
    claim(tmp_path / "run", IDENTITY, resume=False)
    (tmp_path / "run" / "states" / "run.json").write_text(text)
    with pytest.raises(TrainError):
        claim(tmp_path / "run", IDENTITY, resume=True)
