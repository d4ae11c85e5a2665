from fnmatch import fnmatchcase

import pytest
import torch

from model.config import ConfigError
from model.fine_tuning import FineTuning
from model.training.objective.freezing import choose_trained, counts_of, steps_from_top
from tests.tiny import EMBEDDER, ENCODERS, tiny_config, tiny_encoder, tiny_model, tiny_tokenizer


def trained(model):
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def test_everything_is_trained_by_default():
    model = tiny_model(tiny_config())
    choose_trained(model, FineTuning())
    assert trained(model) == {name for name, _ in model.named_parameters()}
    total = sum(parameter.numel() for parameter in model.parameters())
    assert counts_of(model) == (total, total)


def test_patterns_name_what_stays():
    model = tiny_model(tiny_config())
    choose_trained(model, FineTuning(freeze=("encoder.*", "decoder.blocks.[0].*")))
    names = {name for name, _ in model.named_parameters()}
    assert names - trained(model) == {name for name in names if name.startswith(("encoder.", "decoder.blocks.0."))}
    counts = counts_of(model)
    assert 0 < counts.trained < counts.all


@pytest.mark.parametrize(
    ("tuning", "message"),
    [
        (FineTuning(freeze=("encodr.*",)), r"freeze: 'encodr\.\*' matches no parameter; there are \d+, such as "),
        (FineTuning(freeze=("*",)), r"freeze: leaves none of the \d+ parameters to train"),
        (FineTuning(lora_rank=2, lora_train=("x",)), "lora_train: 'x' matches no parameter"),
        (FineTuning(lora_rank=2, lora_targets=("x",)), "lora_targets: 'x' matches no linear layer"),
    ],
)
def test_patterns_that_miss_are_refused(tuning, message):
    with pytest.raises(ConfigError, match=message):
        choose_trained(tiny_model(tiny_config()), tuning)


def test_lora_trains_its_matrices_a_new_head_and_what_is_named():
    model = tiny_encoder("classify")
    tuning = FineTuning(lora_rank=2, lora_targets=("*.self_attention.output",), lora_train=("*.norm.bias",))
    choose_trained(model, tuning, fresh={"label.weight", "label.bias"})
    norms = {name for name, _ in model.named_parameters() if name.endswith(".norm.bias")}
    matrices = {f"encoder.blocks.{block}.self_attention.output.lora_{part}" for block in "01" for part in "ab"}
    assert trained(model) == norms | matrices | {"label.weight", "label.bias"}
    assert len(norms) == 5


@pytest.mark.parametrize(
    "pattern", ["encoder.*", "decoder.*", "decoder.embedding.*", "decoder.embedding.tokens.weight"]
)
def test_a_tied_parameter_is_frozen_by_each_of_its_names(pattern):
    model = tiny_model(tiny_config())
    assert model.decoder.embedding.tokens.weight is model.encoder.embedding.tokens.weight
    choose_trained(model, FineTuning(freeze=(pattern,)))
    assert not model.encoder.embedding.tokens.weight.requires_grad
    names = {name for name, _ in model.named_parameters()}
    frozen = {name for name in names if fnmatchcase(name, pattern)} | {"encoder.embedding.tokens.weight"}
    assert names - trained(model) == frozen


def test_lora_trains_a_tied_parameter_by_its_second_name():
    model = tiny_model(tiny_config())
    choose_trained(model, FineTuning(lora_rank=2, lora_train=("decoder.embedding.*",)))
    assert {name for name in trained(model) if ".lora_" not in name} == {"encoder.embedding.tokens.weight"}


def test_a_new_head_cannot_be_frozen():
    with pytest.raises(ConfigError, match=r"freeze: matches label\.bias of the new head, which would stay random"):
        choose_trained(tiny_encoder("classify"), FineTuning(freeze=("label.*",)), fresh={"label.weight", "label.bias"})


@pytest.mark.parametrize("kind", ["masked", "tokens", "attention", "classify"])
def test_a_pooler_is_trained_if_the_head_reads_it(kind):
    words = tiny_tokenizer(with_mask=True).vocab_size
    model = tiny_model(tiny_config("encoder", vocab_size=words, **{**ENCODERS[kind], "pooler": "tanh"}))
    choose_trained(model, FineTuning())
    others = {name for name, _ in model.named_parameters() if not name.startswith("pooler.")}
    assert trained(model) == others | ({"pooler.dense.weight", "pooler.dense.bias"} if kind == "classify" else set())


def test_layers_after_the_pooling_are_not_trained():
    model = tiny_model(tiny_config("encoder", **{**EMBEDDER, "head": "masked", "mask_id": 4}))
    choose_trained(model, FineTuning())
    names = {name for name, _ in model.named_parameters()}
    assert names - trained(model) == {name for name in names if name.startswith("dense.")} != set()


def test_layers_are_counted_from_the_top_of_their_stack():
    steps = steps_from_top(tiny_model(tiny_config(positions="bucketed")))
    assert steps["decoder.norm.weight"] == 0
    for stack in ("encoder", "decoder"):
        assert steps[f"{stack}.blocks.1.feed_forward.inner.weight"] == 1
        assert steps[f"{stack}.blocks.0.self_attention.output.bias"] == 2
        assert {step for name, step in steps.items() if name.startswith(f"{stack}.position_encoding")} == {3}
    assert steps["encoder.embedding.tokens.weight"] == 3  # one table for both
    head = steps_from_top(tiny_encoder("classify"))
    assert {head["label.weight"], head["pooler.dense.weight"]} == {0}
    assert head["encoder.embedding.positions"] == head["encoder.embedding.norm.weight"] == 3
    recurrent = steps_from_top(tiny_model(tiny_config("recurrent")))
    assert recurrent["encoder.layers.1.weight_ih_l0"] == recurrent["decoder.cells.1.hidden.weight"] == 1
    assert torch.tensor(list(recurrent.values())).max() == 3
