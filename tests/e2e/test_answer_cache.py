"""Answers that a server kept are those that it computes, of requests of every kind."""

import collections

import pytest

from bench.promises.answer_cache import differences, mixed
from glossa.client import Client
from tests.e2e.process import serving
from tests.tiny import TEXTS


@pytest.fixture(scope="module")
def server(tiny_translation_bundle):
    settings = {"models": {"en-de": str(tiny_translation_bundle)}, "answer_cache_bytes": 1 << 24, "engines": 1}
    with serving(**settings) as server:
        yield server


def test_answers_that_were_kept_are_those_that_are_computed(server):
    requests = list(mixed(list(TEXTS), 70, 12))
    differ, computed = differences(server.address, requests)
    assert collections.Counter(one.kind for one in differ) == collections.Counter()
    assert collections.Counter(one.kind for one in computed) == collections.Counter()


def test_a_model_says_whether_its_answers_are_kept(server):
    with Client(server.address) as client:
        model = client.get_model("en-de")
    assert (model.keeps_answers, model.answers_not_kept) == (True, "")
