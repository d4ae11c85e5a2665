import numpy as np
import pytest
import torch

from bench.real.encoder import directions
from bench.real.peer_worker import continued, losses_of
from export.select_scheme import nearest


class Counting:
    """A peer whose next token is the last one plus 1."""

    def __init__(self):
        self.steps = []

    def start(self, prompts, tokens):
        return [prompt[-1] + 1 for prompt in prompts]

    def step(self, chosen):
        self.steps.append(len(chosen))
        return [token + 1 for token in chosen]

    def loss(self, ids):
        raise NotImplementedError


def test_every_caller_gets_as_many_tokens_as_asked():
    peer = Counting()
    answer = continued(peer, {"prompt": [3, 7], "tokens": 4, "callers": 2})
    assert answer["ids"] == [8, 9, 10, 11]
    assert peer.steps == [2, 2, 2]
    assert 0 <= answer["first_s"] <= answer["seconds"]


def test_the_loss_is_the_cross_entropy():
    logits_TV = np.random.default_rng(1).normal(size=(5, 9)) * 30
    targets = [0, 8, 3, 3, 1]
    wanted = torch.nn.functional.cross_entropy(torch.tensor(logits_TV), torch.tensor(targets))
    assert losses_of(logits_TV, targets) == pytest.approx(float(wanted), rel=1e-12)


def test_neighbours_are_nearest_by_direction_whatever_their_lengths():
    assert nearest(list(directions([[1, 0], [9, 1], [0, 1], [1, 5]]))) == [1, 0, 3, 2]
