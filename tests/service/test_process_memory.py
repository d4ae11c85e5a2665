import subprocess
import sys


def test_memory_of_freed_objects_goes_back_to_the_system():
    code = """
from service.process_memory import give_back_memory
from service.engine_process.limits import resident_bytes
kept, freed = [], []
for _ in range(2000):  # the small ones keep the large ones from being given back when they are freed
    freed.append(bytearray(50_000))
    kept.append(bytearray(1_000))
freed.clear()
before = resident_bytes()
give_back_memory()
assert before - resident_bytes() > 50_000_000, (before, resident_bytes())
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
