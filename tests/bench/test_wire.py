"""The messages that the cost of the wire is measured on."""

import pickle

import pytest

from bench.process_answers import exact
from bench.wire import MESSAGES, SHAPE, jobs_of, plain
from service.wire.messages import Work, decode_from_engine, decode_to_engine, encode


@pytest.mark.parametrize("made", MESSAGES.values(), ids=list(MESSAGES))
def test_both_forms_carry_the_whole_message(made):
    message = made()
    decode = decode_to_engine if isinstance(message, Work) else decode_from_engine
    expected = exact(plain(message))
    assert exact(plain(decode(encode(message)))) == expected
    assert exact(pickle.loads(pickle.dumps(plain(message), 5))) == expected


def test_large_weights_are_about_a_megabyte():
    layers, heads, queries, keys = SHAPE
    assert 0.95e6 < 4 * layers * heads * queries * keys < 1.1e6


def test_every_job_takes_time():
    assert all(job() > 0 for job in jobs_of(1).values())
