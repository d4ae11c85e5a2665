"""Errors as one line, results as lines or JSON, and lists of numbers."""

import dataclasses
import json
import math

import pytest
import typer

from cli.terminal import UsageError, describe, numbers, one_line, print_json, report_errors, show


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (UsageError("--rate: must be 1, got 2"), "--rate: must be 1, got 2"),
        (
            FileNotFoundError(2, "No such file or directory", "a.txt"),
            "a.txt: No such file or directory; check the path",
        ),
        (IsADirectoryError(21, "Is a directory", "a"), "a: Is a directory; give a file in it"),
        (PermissionError(13, "Permission denied", "a.txt"), "a.txt: Permission denied"),
        (OSError("without a file"), "without a file"),
        (KeyError("of a stage"), "'of a stage'"),
    ],
)
def test_expected_errors_become_one_line_and_exit_code_1(error, line, capsys):
    with pytest.raises(typer.Exit) as ended, report_errors(KeyError):
        raise error
    assert ended.value.exit_code == 1
    assert capsys.readouterr().err == f"error: {line}\n"
    assert describe(error) == line


def test_a_defect_is_not_caught():
    with pytest.raises(ZeroDivisionError), report_errors(KeyError):
        raise ZeroDivisionError


def test_a_reader_that_has_enough_ends_the_verb_silently(capsys):
    with pytest.raises(typer.Exit) as ended, report_errors():
        raise BrokenPipeError
    assert ended.value.exit_code == 1
    assert capsys.readouterr() == ("", "")


@dataclasses.dataclass
class Result:
    name: str
    values: tuple[int, ...]


def test_a_result_is_json_or_aligned_lines(capsys):
    print_json(Result("ä", (1, 2)))
    assert capsys.readouterr().out == '{"name": "ä", "values": [1, 2]}\n'
    show({"BLEU": 12.5, "sentences": 3}, as_json=False)
    assert capsys.readouterr().out == "BLEU       12.5\nsentences  3\n"
    show({"BLEU": 12.5, "sentences": 3}, as_json=True)
    assert json.loads(capsys.readouterr().out) == {"BLEU": 12.5, "sentences": 3}


def test_line_breaks_are_escaped():
    assert one_line("a\nb\r\nc") == "a\\nb\\r\\nc"


def test_lists_of_numbers():
    assert numbers("--rate", "5,10.5", float) == [5.0, 10.5]
    assert numbers("--rate", "", float) == []
    with pytest.raises(UsageError, match=r"^--rate: must be numbers separated by commas, such as 5,10,20; got '5;6'$"):
        numbers("--rate", "5;6", float)


def test_what_json_lacks_is_null(capsys):
    print_json({"ece": math.nan, "all": [1.5, math.inf, (2, -math.inf)], "deep": {"x": math.nan, "y": True}})
    assert capsys.readouterr().out == '{"ece": null, "all": [1.5, null, [2, null]], "deep": {"x": null, "y": true}}\n'
