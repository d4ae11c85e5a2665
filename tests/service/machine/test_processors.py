import os

import pytest

from service.machine.processors import Processors, in_core_order, processors


def cgroup(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, 8),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "250000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/host/only\n", "sys/fs/cgroup/cpu.max": "300000 100000\n"}, 3),
        (
            {
                "proc/self/cgroup": "0::/pod/app\n",
                "sys/fs/cgroup/pod/cpu.max": "200000 100000",
                "sys/fs/cgroup/pod/app/cpu.max": "600000 100000",
            },
            2,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/\n3:cpu,cpuacct:/pod\n",
                "sys/fs/cgroup/cpu,cpuacct/pod/cpu.cfs_quota_us": "400000",
                "sys/fs/cgroup/cpu,cpuacct/pod/cpu.cfs_period_us": "100000",
            },
            4,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            8,
        ),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "1600000 100000\n"}, 8),
    ],
)
def test_usable_processors_are_affinity_cut_by_quota(tmp_path, monkeypatch, files, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert processors(cgroup(tmp_path, files)).usable == expected


def topology(root, siblings, name="core_cpus_list"):
    return cgroup(root, {f"sys/devices/system/cpu/cpu{n}/topology/{name}": text for n, text in enumerate(siblings)})


@pytest.mark.parametrize("name", ["core_cpus_list", "thread_siblings_list"])
def test_hyperthreads_of_a_core_count_once(tmp_path, monkeypatch, name):
    root = topology(tmp_path, ["0,4\n", "1,5\n", "2,6\n", "3,7\n"] * 2, name)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 4, 6})
    assert processors(root) == Processors(allowed=4, cores=3, quota=None)
    assert processors(root).usable == 3


@pytest.mark.parametrize(
    ("siblings", "expected"),
    [
        (["0-1\n", "0-1\n", "2-3\n", "2-3\n", "4-5\n"], [0, 2, 4, 1, 3]),
        (["0,2\n", "1,3\n"] * 2, [0, 1, 2, 3]),
        ([], [0, 1, 2, 3]),  # the system does not report them
    ],
)
def test_one_thread_of_each_core_comes_before_the_second_of_any(tmp_path, monkeypatch, siblings, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(len(siblings) or 4)))
    assert in_core_order(topology(tmp_path, siblings)) == expected


def test_a_quota_cuts_the_cores_and_not_their_threads(tmp_path, monkeypatch):
    root = topology(tmp_path, ["0-1\n", "0-1\n", "2-3\n", "2-3\n"])
    cgroup(root, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"})
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    assert processors(root) == Processors(allowed=4, cores=2, quota=1.5)
    assert processors(root).usable == 1
