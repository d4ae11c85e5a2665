"""When a server starts itself again for huge pages, and that it does so once and as itself."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

from service.runtime.huge_pages import SWITCH, TUNABLE, VARIABLE, has_huge_pages, obstacle_to_huge_pages

GLIBC = "glibc 2.36"


@pytest.fixture
def machine(tmp_path):
    def make(modes="always [madvise] never"):
        path = tmp_path / SWITCH
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(modes + "\n")
        return tmp_path

    return make


@pytest.mark.parametrize("modes", ["always [madvise] never", "[always] madvise never"])
def test_linux_with_recent_glibc_supports_huge_pages(machine, modes):
    assert obstacle_to_huge_pages({}, machine(modes), GLIBC) is None


@pytest.mark.parametrize(
    ("environment", "modes", "libc", "why"),
    [
        ({VARIABLE: TUNABLE}, "[madvise]", GLIBC, "GLIBC_TUNABLES is set to 'glibc.malloc.hugetlb=1'"),
        ({VARIABLE: ""}, "[madvise]", GLIBC, "GLIBC_TUNABLES is set to ''"),
        ({}, "[madvise]", "glibc 2.34", "the C library is glibc 2.34, not glibc 2.35 or newer"),
        ({}, "[madvise]", "", "the C library is not glibc"),
        ({}, "always madvise [never]", GLIBC, "transparent_hugepage/enabled is set to never"),
    ],
)
def test_obstacle_is_reported(machine, environment, modes, libc, why):
    assert why in (obstacle_to_huge_pages(environment, machine(modes), libc) or "")


def test_kernel_without_huge_pages_is_reported(tmp_path):
    assert "the kernel has no /sys/kernel" in (obstacle_to_huge_pages({}, tmp_path, GLIBC) or "")


def test_only_the_tunable_itself_counts():
    assert has_huge_pages({VARIABLE: f"glibc.malloc.arena_max=2:{TUNABLE}"})
    assert not has_huge_pages({VARIABLE: f"{TUNABLE}0"})
    assert not has_huge_pages({})


def test_program_reexecutes_once_with_its_arguments_pid_input_and_status(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent("""
            import json, os, sys
            from service.runtime import huge_pages
            has_run = huge_pages.VARIABLE in os.environ
            huge_pages.obstacle_to_huge_pages = lambda environment: "set" if has_run else None
            with open(sys.argv[1], "a") as starts:
                print(json.dumps([os.getpid(), os.environ.get(huge_pages.VARIABLE), sys.argv[2:]]), file=starts)
            huge_pages.take_huge_pages()
            print(sys.stdin.read(), sys.flags.dev_mode)
            sys.exit(7)
        """)
    )
    starts = tmp_path / "starts"
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    environment["PYTHONPATH"] = os.getcwd()
    done = subprocess.run(
        [sys.executable, "-X", "dev", str(program), str(starts), "--max-queue", "64 and more"],
        input="stays",
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
        check=False,
    )
    assert (done.stdout.split(), done.returncode) == (["stays", "True"], 7), done.stderr
    (number, before, given), (again, after, given_again) = map(json.loads, starts.read_text().splitlines())
    assert (number, given) == (again, given_again)
    assert (before, after) == (None, TUNABLE)
    assert given == ["--max-queue", "64 and more"]
