"""Faults inside an engine process, and what a process has allocated, on request: Python imports this module first if
its folder is on the search path.

The product knows nothing of it. With BENCH_MEMORY, the name of a folder, SIGUSR1 makes the server and its engine
processes write to BENCH_MEMORY/PID how many bytes are allocated in the heap of C and how many blocks in Python's own.

With BENCH_FAULTS, in an engine process, SIGUSR1 reads the name of a fault from FAULTS/PID, FAULTS being
the folder that BENCH_FAULTS names, and the next turns suffer it. While there is a file FAULTS/always, an engine process
ends as soon as it starts.
"""

import os
import signal
import sys
from pathlib import Path

FOLDER = os.environ.get("BENCH_FAULTS", "")
MEMORY = os.environ.get("BENCH_MEMORY", "")


def arm(fault):
    """Lets all turns from the next one on suffer a fault."""
    import ctypes
    import resource
    import time

    from service.runtime.runner import OnnxRunner

    compute, read = OnnxRunner.run, OnnxRunner._read

    def hang(self, plan):
        time.sleep(1e6)

    def spin(self, plan):
        while True:
            pass

    def freeze(self, plan):
        ctypes.PyDLL(None).sleep(1_000_000)  # with Python's lock: no thread of the process goes on

    def die(self, plan):
        raise SystemExit("the thread of an engine dies")

    def fail(self, plan):
        raise RuntimeError("a graph fails")

    def abort(self, plan):
        os.abort()

    def exhaust(self, plan):
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used, used))
        kept.append(bytearray(1 << 26))  # as a cache that grows
        return compute(self, plan)

    def be_slow(self, plan):
        time.sleep(0.03)  # several times a turn of a small model
        return compute(self, plan)

    def fail_some(self, plan):
        kept.append(None)  # one turn of eight: the engine stays healthy
        return fail(self, plan) if len(kept) % 8 == 0 else compute(self, plan)

    def leak(self, plan):
        kept.append(b"\1" * (1 << 18))
        return compute(self, plan)

    def read_nan(self, plan, extra):
        self._logits._read("logits", 0, max(1, plan.step_rows))[...] = float("nan")
        return read(self, plan, extra)

    kept = []
    if fault == "nan":
        OnnxRunner._read = read_nan  # type: ignore[method-assign]
    else:
        faults = {"hang": hang, "spin": spin, "freeze": freeze, "die": die, "fail": fail, "abort": abort}
        faults |= {"slow": be_slow, "fail-some": fail_some, "leak": leak}
        OnnxRunner.run = {**faults, "exhaust": exhaust}[fault]  # type: ignore[method-assign]


def write_allocated():
    """Of glibc alone: mallinfo2(3). Without what is free in its heaps, however much of that is in RAM, and without
    garbage: what waits for the next full collection is half a megabyte at one time, and nothing at another."""
    import ctypes
    import gc

    gc.collect()

    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    kind = type("mallinfo2", (ctypes.Structure,), {"_fields_": [(name, ctypes.c_size_t) for name in names.split()]})
    read = ctypes.CDLL(None).mallinfo2
    read.restype = kind
    found = read()
    line = f"{found.uordblks + found.hblkhd} {sys.getallocatedblocks()}"
    written = Path(MEMORY, str(os.getpid()))
    written.with_suffix(".partial").write_text(line, encoding="ascii")
    written.with_suffix(".partial").rename(written)


if MEMORY:
    signal.signal(signal.SIGUSR1, lambda *_: write_allocated())
elif FOLDER and "service.engine_process" in sys.orig_argv:
    if Path(FOLDER, "always").exists():
        sys.stderr.write("the disk of this machine is damaged\n")
        os._exit(7)
    signal.signal(signal.SIGUSR1, lambda *_: arm(Path(FOLDER, str(os.getpid())).read_text()))
