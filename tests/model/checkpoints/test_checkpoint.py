import json
import pickle

import pytest
import torch

from model.checkpoints.atomic_write import write_directory
from model.checkpoints.checkpoint import CheckpointError, load_checkpoint, save_checkpoint, weights_of
from model.config import TrainConfig
from tests.full_disk import failures
from tests.tiny import tiny_config, tiny_model, tiny_tokenizer

TRAIN = TrainConfig(steps=1)


def save(path, model=None, **changes):
    arguments = {"tokenizer": tiny_tokenizer(), "train": TRAIN, "metrics": {"bleu": 1.5}, "lineage": {"seed": 7}}
    model = model or tiny_model(tiny_config())
    save_checkpoint(path, model.config, weights_of(model), **{**arguments, **changes})
    return path


@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder"])
@pytest.mark.parametrize("tied", [True, False])
def test_what_is_loaded_is_what_was_saved(architecture, tied, tmp_path):
    config = tiny_config(architecture, tie_embeddings=tied)
    model = tiny_model(config)
    checkpoint = load_checkpoint(save(tmp_path / "checkpoint", model))
    assert checkpoint.config == config
    assert checkpoint.metrics == {"bleu": 1.5}
    assert checkpoint.lineage == {"seed": 7}
    assert checkpoint.tokenizer.to_json() == tiny_tokenizer().to_json()
    assert not checkpoint.model.training
    loaded = dict(checkpoint.model.named_parameters())
    assert loaded.keys() == dict(model.named_parameters()).keys()
    assert all(torch.equal(loaded[name], parameter) for name, parameter in model.named_parameters())


@pytest.mark.parametrize("tied", [True, False])
def test_mapped_weights_are_those_of_the_file_which_is_never_written(tied, tmp_path):
    model = tiny_model(tiny_config("encoder_decoder", tie_embeddings=tied))
    path = save(tmp_path / "checkpoint", model)
    mapped = load_checkpoint(path, maps_weights=True).model
    loaded = load_checkpoint(path).model
    assert len(list(mapped.parameters())) == len(list(loaded.parameters()))
    for (name, one), other in zip(mapped.named_parameters(), loaded.parameters(), strict=True):
        assert torch.equal(one, other), name
    buffers = dict(loaded.named_buffers())
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in mapped.named_buffers())
    with torch.no_grad():
        mapped.decoder.unembedding.weight.zero_()
    kept = load_checkpoint(path).model.decoder.unembedding.weight
    assert torch.equal(kept, loaded.decoder.unembedding.weight)


def test_extra_files_are_part_of_it(tmp_path):
    path = save(tmp_path / "checkpoint", extra={"model_card.md": b"# Card\n"})
    assert (path / "model_card.md").read_bytes() == b"# Card\n"
    (path / "model_card.md").write_bytes(b"# Lies\n")
    with pytest.raises(CheckpointError, match=r"model_card\.md: SHA-256 must be"):
        load_checkpoint(path)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors", "metrics.json", "lineage.json"])
def test_a_file_that_is_cut_short_changed_or_missing_is_named(name, tmp_path):
    path = save(tmp_path / "checkpoint") / name
    data = path.read_bytes()
    path.write_bytes(data[:-3])
    with pytest.raises(CheckpointError, match=rf"{name}: must be {len(data)} bytes, got {len(data) - 3}"):
        load_checkpoint(path.parent)
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(CheckpointError, match=rf"{name}: SHA-256 must be"):
        load_checkpoint(path.parent)
    path.unlink()
    with pytest.raises(CheckpointError, match=rf"{name}: cannot be read: No such file"):
        load_checkpoint(path.parent)


def test_what_is_no_checkpoint_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="no such directory; train a model there"):
        load_checkpoint(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"not a checkpoint, digests\.json is missing"):
        load_checkpoint(tmp_path)
    (tmp_path / "states").mkdir()
    with pytest.raises(CheckpointError, match="not finished; finish it with --resume"):
        load_checkpoint(tmp_path)
    (tmp_path / "digests.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"digests\.json: cannot be read"):
        load_checkpoint(tmp_path)
    (tmp_path / "digests.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"config\.json: not listed in digests\.json"):
        load_checkpoint(tmp_path)


def rewritten(path, name, data):
    """The checkpoint with one file replaced and its digests made to fit."""
    files = {file.name: file.read_bytes() for file in path.iterdir() if file.name != "digests.json"}
    write_directory(path.with_name("rewritten"), {**files, name: data})
    return path.with_name("rewritten")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"format_version": 3}, "format_version must be 1 or 2, got 3"),
        ({"model": {"d_modle": 3}}, "d_modle: unknown key; did you mean 'd_model'"),
        ({"model": {}}, r"config\.json: vocab_size: must be that of the weights, got 0"),
        ({"model": {"vocab_size": 5}}, r"tokenizer\.json: must have at most the model's 5 entries"),
        ({"train": {"steps": -1}}, "steps: must be at least 0, got -1"),
        ({"train": None}, "cannot be read"),
    ],
)
def test_a_configuration_of_another_time_is_refused(change, problem, tmp_path):
    path = save(tmp_path / "checkpoint")
    config = {**json.loads((path / "config.json").read_bytes()), **change}
    with pytest.raises(CheckpointError, match=problem):
        load_checkpoint(rewritten(path, "config.json", json.dumps(config).encode()))


def test_weights_that_do_not_fit_the_configuration_are_named(tmp_path):
    path = save(tmp_path / "checkpoint")
    for changes, problem in (
        ({"num_decoder_layers": 3}, r"weight decoder\.blocks\.2\.\S+ is missing"),
        ({"num_decoder_layers": 1}, r"weight decoder\.blocks\.1\.\S+ is not part of the model"),
        ({"d_ff": 32}, r"inner\.weight must have shape \(32, 32\), got \(64, 32\)"),
    ):
        other = save(tmp_path / str(changes), tiny_model(tiny_config(**changes)))
        weights = (path / "model.safetensors").read_bytes()
        with pytest.raises(CheckpointError, match=problem):
            load_checkpoint(rewritten(other, "model.safetensors", weights))
        for file in (tmp_path / "rewritten").iterdir():
            file.unlink()
        (tmp_path / "rewritten").rmdir()


def test_a_pickle_in_disguise_is_refused(tmp_path):
    path = save(tmp_path / "checkpoint")
    bomb = b"\x80\x04cbuiltins\nexit\n(tR."  # calls exit() when unpickled
    with pytest.raises(SystemExit):
        pickle.loads(bomb)
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        load_checkpoint(rewritten(path, "model.safetensors", bomb))


def test_a_finished_checkpoint_is_never_overwritten(tmp_path):
    path = save(tmp_path / "checkpoint")
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    with pytest.raises(CheckpointError, match="already holds a finished checkpoint; choose another directory"):
        save(path, metrics={"bleu": 2})
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before


def test_a_full_disk_leaves_no_checkpoint_and_is_reported(tmp_path):
    path, model, seen = tmp_path / "checkpoint", tiny_model(tiny_config()), 0
    for error in failures(lambda disk: save(path, model, disk=disk)):
        seen += 1
        assert isinstance(error, CheckpointError)
        assert "cannot be saved: No space left on device" in str(error)
        assert "MB needed" in str(error)
        with pytest.raises(CheckpointError):
            load_checkpoint(path)
        assert not list(path.glob(".*"))
    assert seen == 6 * 4  # write, sync, rename, sync of six files
    assert load_checkpoint(path).metrics == {"bleu": 1.5}
