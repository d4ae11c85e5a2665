import logging

import pytest

from service.engine_process.log_handler import WireLogHandler
from service.wire.messages import Log


@pytest.fixture
def logged():
    """A logger of its own, and what its handler sends."""
    sent: list[Log] = []
    logger = logging.Logger("engine")  # without parents, whose handlers belong to the tests' runner
    logger.addHandler(WireLogHandler(sent.append))
    return logger, sent


def test_a_record_is_sent_as_text(logged):
    logger, sent = logged
    logger.warning("%d rows of %s", 3, "r-1")
    assert sent == [Log(logging.WARNING, "engine", "3 rows of r-1", "")]


def test_an_exception_is_sent_with_its_traceback(logged):
    logger, sent = logged
    try:
        raise ValueError("what")
    except ValueError:
        logger.exception("request %s", "r-1")
    (log,) = sent
    assert (log.level, log.text) == (logging.ERROR, "request r-1")
    assert log.exception.startswith("Traceback")
    assert "test_log_handler.py" in log.exception
    assert log.exception.endswith("ValueError: what")


def test_a_record_that_cannot_be_sent_costs_only_itself(logged, capsys):
    logger, sent = logged
    logger.error("%d rows", "three")
    logger.error("next")
    assert [log.text for log in sent] == ["next"]
    assert "%d rows" in capsys.readouterr().err  # which the edge logs
