import io

import pytest
from rich.console import Console

from model.training.progress import Display, clock, si


def test_plain_lines_without_a_terminal():
    stream = io.StringIO()
    display = Display(Console(file=stream))
    display.message("hello " * 30)
    display.update(0.25, "step 7  25%  loss 2.500")
    display.close()
    assert stream.getvalue() == f"{'hello ' * 30}\nstep 7  25%  loss 2.500\n"


def test_a_bar_on_a_terminal():
    stream = io.StringIO()
    display = Display(Console(file=stream, force_terminal=True, width=120))
    display.message("epoch [1]")
    display.update(0.25, "loss 2.500")
    display.close()
    display.close()
    assert "epoch [1]" in stream.getvalue()
    assert "loss 2.500" in stream.getvalue()
    assert "━" in stream.getvalue()


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_message_is_shown_as_it_is(is_terminal):
    stream = io.StringIO()
    display = Display(Console(file=stream, force_terminal=is_terminal))
    display.message("[bold]a :fire: in data/:smile:.tsv[/bold] 123")
    display.close()
    assert "[bold]a :fire: in data/:smile:.tsv[/bold] 123\n" in stream.getvalue()


def test_clock_times():
    assert [clock(seconds) for seconds in (-1, 59.4, 75, 3700)] == ["0:00", "0:59", "1:15", "1:01:40"]


def test_numbers_have_three_figures_and_a_prefix():
    values = (0, 7, 950, 1000, 12_345, 999_999, 1_234_567, 2.5e9, 1.5e15, 3.2e24)
    expected = ("0 ", "7 ", "950 ", "1.00 k", "12.3 k", "1.00 M", "1.23 M", "2.50 G", "1.50 P", "3200 Z")
    assert tuple(map(si, values)) == expected
