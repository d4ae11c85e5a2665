"""What a flood of calls took goes back to the system: glibc keeps 60 to 80 MB of 10,000 calls at a time, in pieces."""

from __future__ import annotations

import asyncio

from service.machine.process_memory import give_back_memory, resident_bytes

PAUSE_S, MOST_PAUSE_S = 2.0, 60.0
KEPT_BYTES = 16 << 20


async def give_back_what_calls_took() -> None:
    """Gives back, again and again, what is above the memory that this process has now. In a thread, as it can take
    20 ms; ever less often while it gains little. At first it also gives back what starting took, so that the thread is
    there from the beginning and load does not add one."""
    settled, pause_s = _resident_bytes(), PAUSE_S
    await asyncio.to_thread(give_back_memory)
    while True:
        await asyncio.sleep(pause_s)
        before = _resident_bytes()
        if before > settled + KEPT_BYTES:
            await asyncio.to_thread(give_back_memory)
            has_gained = before - _resident_bytes() > KEPT_BYTES / 4
            pause_s = PAUSE_S if has_gained else min(2 * pause_s, MOST_PAUSE_S)


def _resident_bytes() -> int:
    """Memory of this process; 0 while the system cannot tell, because no more files may be open."""
    try:
        return resident_bytes()
    except OSError:
        return 0
