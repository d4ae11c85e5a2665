import json
from pathlib import Path

import pytest
import torch

from model.architectures import build
from model.checkpoints.checkpoint import CheckpointError, load_weights, read_config
from tests.tiny import tiny_config, tiny_model


@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder", "encoder", "recurrent"])
def test_a_configuration_of_release_0_1_loads_without_the_fields_of_other_architectures(architecture, tmp_path):
    """Its config.json has the fields of all architectures; here one is not even at its default."""
    fields = json.loads((Path(__file__).parent / "config_format_1.json").read_text())
    model = {**fields, "architecture": architecture, "vocab_size": 9, "window": 5, "cell": "gru", "more_eos_ids": [7]}
    config, _ = read_config(json.dumps({"format_version": 1, "model": model}).encode(), tmp_path)
    assert (config.architecture, config.eos_ids, config.template.target_prefix) == (architecture, (2, 7), (1,))
    assert config.sliding_window == (5 if architecture in ("encoder_decoder", "decoder") else 0)
    with pytest.raises(CheckpointError, match="d_modle: unknown key"):
        read_config(json.dumps({"format_version": 1, "model": {**model, "d_modle": 3}}).encode(), tmp_path)


def test_weights_of_release_0_1_load_under_their_names_of_today():
    model = tiny_model(tiny_config("encoder_decoder", positions="bucketed"))
    old = {
        name.replace(".position_encoding.", ".cues."): parameter.detach().clone()
        for name, parameter in model.named_parameters()
    }
    assert "decoder.cues.bias.weight" in old
    fresh = build(model.config)
    load_weights(fresh, old, Path("checkpoint"))
    assert all(map(torch.equal, fresh.parameters(), model.parameters()))
