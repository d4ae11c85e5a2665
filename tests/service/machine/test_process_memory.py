import os
import signal
import subprocess
import sys


def test_memory_of_freed_objects_goes_back_to_the_system():
    code = """
from service.machine.process_memory import give_back_memory, resident_bytes
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


def test_resident_memory_grows_with_what_is_touched():
    code = """
from service.machine.process_memory import resident_bytes
before = resident_bytes()
touched = bytearray(b"x") * (1 << 26)
assert (1 << 26) - (1 << 23) < resident_bytes() - before < (1 << 26) + (1 << 23)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_crash_leaves_no_core_file(tmp_path):
    code = """
import os, resource
from service.machine.process_memory import no_core_dumps
no_core_dumps()
assert resource.getrlimit(resource.RLIMIT_CORE) == (1, 1)
os.abort()
"""
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, timeout=60
    )
    assert done.returncode == -signal.SIGABRT
    assert not list(tmp_path.iterdir())
