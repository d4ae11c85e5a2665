"""Runs the collected tests in several processes that are forked from one: `--workers 3`.

Modules, libraries and tests are read once, and shared. A module's tests stay in one process, which alone builds its
fixtures and starts its servers; a process takes the next module when it is through with one. A process that dies fails
the test that it ran, and another one takes its place.
"""

import itertools
import os
import traceback
from multiprocessing.connection import Pipe, wait
from typing import NamedTuple

import pytest

_SHARED = pytest.StashKey()  # the directory of a run


def pytest_addoption(parser):
    parser.addoption("--workers", type=int, default=1, metavar="N", help="run the tests in N forked processes")


@pytest.fixture(scope="session")
def directory_of_the_run(pytestconfig, tmp_path_factory):
    """A directory that all processes of a run share."""
    return pytestconfig.stash.get(_SHARED, None) or tmp_path_factory.getbasetemp()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    count = session.config.getoption("--workers")
    if count < 2 or session.config.option.collectonly or session.testsfailed:
        return None
    session.config.stash[_SHARED] = session.config._tmp_path_factory.getbasetemp()
    numbers = range(len(session.items))
    modules = [list(tests) for _, tests in itertools.groupby(numbers, lambda number: session.items[number].path)]
    _Run(session, modules).run(count)
    return True


class Worker(NamedTuple):
    """connection: takes numbers of tests, sends reports. tests: those that it has not ended, the present one first."""

    pid: int
    connection: object
    tests: list


class _Run:
    def __init__(self, session, modules):
        self._session, self._waiting, self._workers, self._names = session, modules[::-1], {}, itertools.count()

    def run(self, count):
        for _ in range(min(count, len(self._waiting))):
            self._start(self._waiting.pop())
        try:
            while self._workers:
                for connection in wait(self._workers):
                    self._receive(self._workers[connection])
                if self._session.shouldfail:
                    raise self._session.Failed(self._session.shouldfail)
        finally:
            for worker in self._workers.values():
                worker.connection.close()  # it ends when it reports

    def _start(self, tests):
        ours, theirs = Pipe()
        name = f"worker{next(self._names)}"
        pid = os.fork()
        if not pid:
            status = 1
            try:
                for connection in (ours, *self._workers):
                    connection.close()
                _work(self._session, theirs, name)
                status = 0
            except (EOFError, OSError):
                pass  # the run ended
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        theirs.close()
        self._workers[ours] = Worker(pid, ours, [])
        self._give(self._workers[ours], tests)

    def _give(self, worker, tests):
        worker.tests[:] = tests
        worker.connection.send(tests)

    def _receive(self, worker):
        hook, config = self._session.config.hook, self._session.config
        try:
            kind, value = worker.connection.recv()
        except (EOFError, OSError):
            self._lost(worker)
            return
        if kind == "report":
            report = hook.pytest_report_from_serializable(config=config, data=value)
            hook.pytest_runtest_logreport(report=report)
        elif kind == "start":
            item = self._session.items[worker.tests[0]]
            hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        elif kind == "finish":
            worker.tests.pop(0)
        else:
            self._give(worker, self._waiting.pop() if self._waiting else [])

    def _lost(self, worker):
        """After its last test a process ends with the status 0."""
        del self._workers[worker.connection]
        worker.connection.close()
        status = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
        if not status and not worker.tests:
            return
        if not worker.tests:
            raise RuntimeError(f"a process of the tests ended with status {status}")
        item = self._session.items[worker.tests[0]]
        told = f"the process that ran this test ended with status {status}"
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", told, "call")
        self._session.config.hook.pytest_runtest_logreport(report=report)
        if worker.tests[1:]:
            self._start(worker.tests[1:])


def _work(session, connection, name):
    """Runs what comes until an empty list does. pytest's captures and temporary directories are made anew: files that
    were open at the fork have one position for all processes."""
    config = session.config
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    capture.suspend_global_capture()
    own = config.stash[_SHARED] / name
    own.mkdir()
    config._tmp_path_factory._basetemp = own
    config.pluginmanager.unregister(name="terminalreporter")
    config.pluginmanager.register(_Told(config, connection))
    while tests := connection.recv():
        for item, following in itertools.pairwise([*(session.items[number] for number in tests), _Any(session)]):
            connection.send(("start", None))
            config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            connection.send(("finish", None))
        connection.send(("next", None))
    session._setupstate.teardown_exact(None)


class _Any(NamedTuple):
    """A test that comes after those of a module: fixtures of the session stay."""

    session: object

    def listchain(self):
        return [self.session]


class _Told:
    """Sends reports."""

    def __init__(self, config, connection):
        self._config, self._connection = config, connection

    def pytest_runtest_logreport(self, report):
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._connection.send(("report", data))
