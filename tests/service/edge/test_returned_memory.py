import subprocess
import sys


def test_what_calls_took_goes_back_while_others_run():
    code = """
import asyncio
from service.edge import returned_memory
from service.process_memory import resident_bytes
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
