"""The program of an engine process: `python -m service.engine_process SOCKET TABLE PARENT`, started by the edge only.

SOCKET, TABLE: descriptors of the socket to the edge and of the table of busy engines. PARENT: process id of the edge.
A reason not to serve goes to the edge in one `Refused`; a crash shows in the exit status and on standard error.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import mmap
import os
import socket
import sys
from pathlib import Path

from glossa.version import VERSION
from service.engine_process import limits
from service.errors import StartupError
from service.machine.process_memory import no_core_dumps, settle
from service.measurements import Measure
from service.step import DeviceLost
from service.wire import messages
from service.wire.channel import receive
from service.wire.messages import Refused, Start, WireError, decode_to_engine, encode

DEVICE_LOST = 3  # exit status: another process may have more luck with the device, or take the CPU


def main() -> None:
    """Serves until the edge closes the connection."""
    descriptor, table, parent = map(int, sys.argv[1:])
    limits.end_with(parent)
    limits.leave_signals_to_parent()
    limits.prefer_for_oom_kill()
    no_core_dumps()
    faulthandler.enable()
    end = socket.socket(fileno=descriptor)
    start = _start_message(end)
    limits.limit_memory(start.settings.memory_bytes)
    limits.pin_to(start.settings.processors)
    limits.see_device(start.settings.cuda_device)
    limits.give_way(start.settings.niceness)
    try:
        _serve(end, start, mmap.mmap(table, 0))
    except (StartupError, ImportError, MemoryError) as error:
        fix = "" if isinstance(error, StartupError) else "; fix: reinstall Glossa, see `glossa doctor`"
        with contextlib.suppress(OSError):  # another process of the model was the first to refuse, and the edge gave up
            end.send(encode(Refused(f"{str(error) or type(error).__name__}{fix}"[:10_000])))
        os._exit(1)
    except DeviceLost:
        os._exit(DEVICE_LOST)
    os._exit(0)  # as above: threads of libraries must not delay the end, nor destructors of a failed device crash


def _start_message(end: socket.socket) -> Start:
    try:
        data = receive(end)
        if not data:  # the edge gave up
            sys.exit(0)
        match decode_to_engine(data):
            case Start(version=messages.VERSION, program=program) as start if program == VERSION:
                return start
            case other:
                problem = f"a {type(other).__name__} of another program"
    except WireError as error:
        problem = str(error)
    end.send(encode(Refused(f"this is Glossa {VERSION}, which got {problem}; fix: restart the server")))
    sys.exit(1)


def _serve(end: socket.socket, start: Start, table: mmap.mmap) -> None:
    # Only now: what is imported here takes most of a second, and the limits must stand before it makes threads.
    from service.engine_process.engine_process import Connection, EngineProcess
    from service.engine_process.log_handler import WireLogHandler
    from service.engine_process.measurements import Measurements
    from service.engine_process.open_engines import open_engines
    from service.runtime.model_sessions import BusyEngines

    connection = Connection(end)
    logging.getLogger().addHandler(WireLogHandler(connection.send))
    measurements: list[Measurements] = []

    def new_measure() -> Measure:
        measurements.append(Measurements())
        return measurements[-1].append

    with limits.opening_memory(start.settings.opening_bytes):
        opened = open_engines(
            Path(start.path),
            start.settings,
            busy_engines=BusyEngines(table, start.first_engine),
            new_measure=new_measure,
            bundle_sha256=start.bundle_sha256,
            checks_batches=start.checks_batches,
            name=f"engine-{start.model}",
        )
    settle()
    connection.send(
        messages.Opened(
            bundle_sha256=opened.bundle_sha256,
            choice=opened.choice,
            engines=len(opened.engines),
            is_batch_invariant=opened.is_batch_invariant,
        )
    )
    EngineProcess(connection, opened, measurements).run()


if __name__ == "__main__":
    main()
