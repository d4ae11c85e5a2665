import hashlib
import math
import random
import re
import statistics

import pytest

from model.corpus.corpus import scenes
from model.corpus.scenes import scene_rule
from tests.model.corpus import held_out as only_test
from tests.model.corpus.derivations import drawn, entropy

HELD_OUT = only_test.ADJECTIVES | only_test.PLACES


@pytest.mark.parametrize("split", [pytest.param("train", marks=pytest.mark.slow), "test"])
def test_the_mean_log_probability_is_the_entropy(split):
    rule, uniform = scene_rule(split == "test"), random.Random(3).random
    found = [drawn(rule, uniform) for _ in range(4_000)]
    assert [scene.en for scene, _ in found] == scenes(3, 4_000, split)
    nats = [-logprob for _, logprob in found]
    error = statistics.stdev(nats) / math.sqrt(len(nats))
    assert statistics.mean(nats) == pytest.approx(entropy(rule), abs=4 * error)


@pytest.mark.parametrize(("split", "held_out"), [("train", 0), ("test", 1)])
def test_only_test_scenes_contain_a_held_out_combination(split, held_out):
    uniform = random.Random(4).random
    for _ in range(3_000):
        scene = scene_rule(split == "test").draw(uniform)
        assert sum(pair in HELD_OUT for pair in scene.combinations) == held_out, scene


def test_a_scene_has_two_to_five_sentences_and_speaks_of_one_hero():
    for text in scenes(5, 3_000, "train"):
        first, *others = re.findall(r"[^.]+\.", text)
        assert 1 <= len(others) <= 4, text
        pronouns = set(re.findall(r"\b(?:he|she|they|him|them|his|their)\b", " ".join(others).lower()))
        masculine, plural = bool(pronouns & {"he", "him", "his"}), bool(pronouns & {"they", "them", "their"})
        assert masculine + plural + ("she" in pronouns) <= 1, text
        assert plural == (" are " in first) or not pronouns, text


def test_the_same_seed_gives_the_same_scenes():
    digest = hashlib.sha256(repr([scenes(1, 1_000, split) for split in ("train", "test")]).encode()).hexdigest()
    assert digest == "c3e8289dac3a5c232b367c56928bc04e81f0e04e80bb54a6dd3c074b82d3df75"
