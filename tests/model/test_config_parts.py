"""Layers after the pooling and prompts: what a configuration takes, and what it names when it does not."""

import pytest

from model.architecture_config import EncoderConfig
from model.config import ConfigError
from model.config_parts import MAX_PROMPTS, DenseLayer

TANH = DenseLayer(size=3, activation="tanh")


def test_layers_and_prompts_return_from_json():
    config = EncoderConfig(d_model=8, dense=(TANH, DenseLayer(size=2, bias=False)), prompts=(("query", "q: "),))
    assert type(config).from_json(config.to_json()) == config
    assert (config.vector_size, config.replace(dense=()).vector_size) == (2, 8)
    values = {"dense": [{"size": 3, "activation": "tanh"}], "prompts": [["a", "b"]]}
    assert EncoderConfig.from_json(values) == EncoderConfig(dense=(TANH,), prompts=(("a", "b"),))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"dense": (3,)}, "dense[0]: must be an object with size, got 3"),
        ({"dense": (TANH, {"size": 0})}, "dense[1].size: must be at least 1, got 0"),
        ({"dense": ({},)}, "dense[0].size: must be at least 1, got 0"),
        ({"dense": ({"size": 2, "activation": "elu"},)}, "dense[0].activation: must be one of identity, tanh, relu"),
        ({"dense": ({"size": 2, "biass": True},)}, "dense[0].biass: unknown key; did you mean 'bias'?"),
        ({"prompts": (("", "a"),)}, "prompts: must have names of 1..4096 printable characters, got ''"),
        ({"prompts": (("a", "b"), ("a", "c"))}, "prompts: must have different names, got a, a"),
        ({"prompts": (("a", 5),)}, "prompts: must be pairs of a name and a text"),
        (
            {"prompts": (("a", "\0"),)},
            "prompts: must be at most 4096 characters without U+0000 and surrogates, got 'a'",
        ),
        ({"prompts": (("a", "\ud800"),)}, "prompts: must be at most 4096 characters without"),
        ({"prompts": (("a", "b" * 4097),)}, "got 'a' of 4097: 'bbbb"),
        ({"prompts": tuple((f"{i}", "") for i in range(MAX_PROMPTS + 1))}, "prompts: must be at most 256, got 257"),
        ({"prompts": (("a", "b"),), "default_prompt": "c"}, "default_prompt: must be one of the prompts a, got 'c'"),
    ],
)
def test_what_no_model_could_have_is_refused(fields, problem):
    with pytest.raises(ConfigError) as caught:
        EncoderConfig(**fields)
    assert problem in str(caught.value)
