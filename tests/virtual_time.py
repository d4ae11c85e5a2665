"""An event loop whose time passes only when all tasks wait, or when a test advances it. Nothing sleeps."""

import asyncio
import selectors


class _Selector(selectors.SelectSelector):
    """Instead of waiting it moves the clock on."""

    now_s = 0.0

    def select(self, timeout=None):
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "everybody waits for something that never happens"
            self.now_s += max(0.0, timeout)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self):
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self):
        return self._virtual.now_s

    def stall(self, seconds):
        """What a callback costs that keeps the loop busy."""
        self._virtual.now_s += seconds


def run_virtually(work):
    """The result of a coroutine."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)


def stall(seconds):
    """Keeps the running loop busy for so long."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.stall(seconds)
