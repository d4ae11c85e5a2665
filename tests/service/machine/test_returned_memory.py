import asyncio
import errno
import subprocess
import sys

from service.machine import returned_memory


def test_what_calls_took_goes_back_while_others_run():
    code = """
import asyncio
from service.machine import returned_memory
from service.machine.process_memory import resident_bytes
returned_memory.PAUSE_S = 0.01
async def main():
    before = resident_bytes()
    giving = asyncio.create_task(returned_memory.give_back_what_calls_took())
    await asyncio.sleep(0)
    kept, freed = [], []
    for _ in range(2000):
        freed.append(bytearray(50_000))
        kept.append(bytearray(1_000))
    freed.clear()
    async with asyncio.timeout(50):
        while resident_bytes() > before + 40_000_000:
            await asyncio.sleep(0)
    giving.cancel()
asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


async def test_memory_that_cannot_be_read_for_a_while_is_read_again(monkeypatch):
    reads, read_again = list[int](), asyncio.Event()

    def resident_bytes():
        reads.append(len(reads))
        if len(reads) % 2 == 0:
            raise OSError(errno.EMFILE, "Too many open files")
        if len(reads) > 6:
            read_again.set()
        return 0

    monkeypatch.setattr(returned_memory, "resident_bytes", resident_bytes)
    monkeypatch.setattr(returned_memory, "PAUSE_S", 0.0)
    giving = asyncio.create_task(returned_memory.give_back_what_calls_took())
    waiting = asyncio.create_task(read_again.wait())
    await asyncio.wait((giving, waiting), timeout=50, return_when=asyncio.FIRST_COMPLETED)
    assert read_again.is_set()
    assert not giving.done()
    giving.cancel()
