"""Limits of made-up cgroups, of both versions."""

from pathlib import Path

import pytest

from service.machine.cgroups import cgroups, memory_limit

MIB = 1 << 20


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_groups_of_both_versions_from_the_innermost_to_the_root(tmp_path):
    write(tmp_path, "proc/self/cgroup", "4:memory:/a\n3:cpu,cpuacct:/c\n0::/b\n")
    found = [path.relative_to(tmp_path / "sys/fs/cgroup").as_posix() for path in cgroups(tmp_path, "memory")]
    assert found == ["memory/a", "memory", "memory/a", "memory", "b", ".", "unified/b", "unified"]


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, None),
        ({"box/memory.max": "max\n"}, None),
        ({"box/memory.max": f"{300 * MIB}\n"}, 300 * MIB),
        ({"box/memory.max": "max\n", "memory.max": f"{200 * MIB}\n"}, 200 * MIB),
        ({"box/memory.max": f"{300 * MIB}\n", "memory.max": f"{200 * MIB}\n"}, 200 * MIB),
        ({"memory/box/memory.limit_in_bytes": f"{100 * MIB}\n"}, 100 * MIB),
        ({"memory/box/memory.limit_in_bytes": "9223372036854771712\n"}, None),
    ],
)
def test_the_smallest_limit_counts(tmp_path, files, limit):
    write(tmp_path, "proc/self/cgroup", "4:memory:/box\n0::/box\n")
    for name, text in files.items():
        write(tmp_path, f"sys/fs/cgroup/{name}", text)
    assert memory_limit(tmp_path) == limit


def test_without_cgroups_there_is_no_limit(tmp_path):
    assert memory_limit(tmp_path) is None
