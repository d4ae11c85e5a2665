import pytest

from model.config import ConfigError
from model.fine_tuning import FineTuning


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"freeze": "encoder"}, "freeze: must be a list of patterns, got 'encoder'"),
        ({"freeze": [""]}, "freeze: must be a list of patterns"),
        ({"layer_decay": 1.1}, r"layer_decay: must be 0.01..1.0, got 1.1"),
        ({"patience": -1}, "patience: must be at least 0, got -1"),
        ({"stop_metric": "bleu"}, "stop_metric: bleu needs patience of at least 1"),
        ({"patience": 1, "stop_metric": "ter"}, "stop_metric: must be one of loss, bleu, accuracy, f1, got 'ter'"),
        ({"lora_alpha": 8.0}, "lora_alpha: needs lora_rank of at least 1"),
        ({"lora_train": ["*.bias"]}, "lora_train: needs lora_rank of at least 1"),
        ({"lora_targets": ["*.blocks.*"]}, "lora_targets: needs lora_rank of at least 1"),
        ({"lora_targets": []}, "lora_targets: needs lora_rank of at least 1"),
        ({"lora_merge": False}, "lora_merge: false needs lora_rank of at least 1"),
        ({"lora_rank": 2, "lora_targets": []}, "lora_targets: must name a layer"),
        ({"lora_rang": 2}, "lora_rang: unknown key; did you mean 'lora_rank'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        FineTuning.from_json(values)


def test_alpha_is_the_rank_by_default():
    assert FineTuning().lora_scale == 0.0
    assert FineTuning(lora_rank=8).lora_scale == 1.0
    assert FineTuning(lora_rank=8, lora_alpha=16.0).lora_scale == 2.0


def test_settings_survive_json():
    settings = FineTuning(freeze=("encoder.*",), lora_rank=2, patience=3)
    assert FineTuning.from_json(settings.to_json()) == settings
