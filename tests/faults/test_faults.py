"""The list of faults keeps up with the sources, and the runner tells a caught fault from one that is not."""

from pathlib import Path

import pytest

from tests.faults.__main__ import ROOT, failures, line_of, with_fault, write
from tests.faults.faults import FAULTS, Fault

PASSES = "def test_adds():\n    from one import add\n\n    assert add(1, 2) == 3\n"
SLOW = "import pytest\n\n\n@pytest.mark.slow\n" + PASSES
FAULT = Fault("subtracts", "one.py", "a + b", "a - b", ("test_one.py", "test_slow.py"))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_each_fault_has_its_place_and_its_tests(fault):
    text = (ROOT / fault.file).read_text(encoding="utf-8")
    assert with_fault(fault, text) != text
    assert [test for test in fault.tests if not (ROOT / test).is_file()] == []


def test_names_are_distinct():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


@pytest.mark.slow
def test_a_fault_is_shown_with_the_tests_that_catch_it(tmp_path):
    for name, text in {
        "one.py": "def add(a, b):\n    return a + b\n",
        "test_one.py": PASSES,
        "test_slow.py": SLOW,
    }.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\nmarkers = slow: s\n  cuda: c\n")
    (tmp_path / "tests").symlink_to(Path(__file__).parents[1])
    assert failures(tmp_path, FAULT.tests, is_fast=False) == {}
    write(tmp_path / "one.py", with_fault(FAULT, (tmp_path / "one.py").read_text()))
    found = failures(tmp_path, FAULT.tests, is_fast=False)
    assert found == {"test_one.py::test_adds": False, "test_slow.py::test_adds": True}
    assert line_of(FAULT, found) == "| subtracts | one.py | one (1/1), slow (0/1) |"
    assert failures(tmp_path, FAULT.tests, is_fast=True) == {"test_one.py::test_adds": False}
