import pytest

from service.machine.huge_pages import (
    SWITCH,
    TUNABLE,
    VARIABLE,
    has_huge_pages,
    obstacle_to_huge_pages,
    with_huge_pages,
)

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


def test_only_an_environment_without_a_choice_gets_them(monkeypatch):
    monkeypatch.setattr(
        "service.machine.huge_pages.obstacle_to_huge_pages", lambda environment: environment.get(VARIABLE)
    )
    assert with_huge_pages({"A": "b"}) == {"A": "b", VARIABLE: TUNABLE}
    assert with_huge_pages({VARIABLE: "glibc.malloc.check=1"}) == {VARIABLE: "glibc.malloc.check=1"}
