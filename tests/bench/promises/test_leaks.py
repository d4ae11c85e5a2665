"""What is counted as left behind, and the measurement in its smallest form."""

import argparse
import asyncio
import os
import time

import pytest

from bench.promises.leaks import Counted, leaks, threads_and_files
from service.errors import Cancelled
from service.request import Finished, FinishReason, TextDelta
from tests.tiny import pairs_file


def test_an_open_file_and_a_thread_are_counted():
    before = threads_and_files(os.getpid())
    with open(os.devnull):
        assert threads_and_files(os.getpid())["open files"] == before["open files"] + 1


@pytest.mark.parametrize(("last", "seen"), [(Cancelled("no"), 3), (Finished(FinishReason.LENGTH), None)])
async def test_a_request_is_cancelled_at_its_token_once(last, seen):
    done = asyncio.get_running_loop().create_future()
    now_s, cancels = time.monotonic(), []
    began_s = iter([now_s - 60, now_s - 60, now_s - 60, now_s + 60])  # the third step is under way when it is cancelled
    sink = Counted(3, done, lambda: next(began_s))
    sink.cancel = lambda: cancels.append(sink.tokens)
    for event in (*(TextDelta("a", tokens) for tokens in ((1,), (2, 3), (4,), (5,))), last):
        sink(event)
    assert cancels == [3]
    assert sink.seen_at_cancel == seen, "an answer that came all the same was not cancelled"
    assert sink.later_steps == 1
    assert done.done()


@pytest.mark.slow
def test_a_server_leaves_nothing_behind(tiny_translation_bundle, tmp_path, capsys):
    asked = argparse.Namespace(
        bundle=tiny_translation_bundle,
        data=pairs_file(tmp_path),
        requests=100,
        clients=8,
        cancels=5,
        seed=1,
        json=False,
    )
    with pytest.raises(SystemExit):
        leaks(asked)
    printed = capsys.readouterr().out
    for what in ("requests that run or wait afterwards: 0", "threads left: 0", "open files left: 0"):
        assert f"met  {what}" in printed
    assert "met  steps begun after a cancellation" in printed
    assert "met  tokens computed for cancelled requests that no event shows: 0" in printed
