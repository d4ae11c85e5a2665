import io

from rich.console import Console

from model.training.progress import BarDisplay, StepMetrics, clock, display_for

FIGURES = StepMetrics(step=7, share=0.25, loss=2.5, learning_rate=1e-3, tokens_per_s=7654.3, remaining_s=75)


def test_plain_lines_without_a_terminal():
    stream = io.StringIO()
    display = display_for(stream)
    display.message("hello")
    display.update(FIGURES)
    display.close()
    assert stream.getvalue() == "hello\nstep 7  25%  loss 2.500  lr 1.0e-03  7,654 tokens/s  1:15 left\n"


def test_a_bar_on_a_terminal():
    stream = io.StringIO()
    display = BarDisplay(Console(file=stream, force_terminal=True, width=120))
    display.message("epoch [1]")
    display.update(FIGURES)
    display.close()
    assert "epoch [1]" in stream.getvalue()
    assert "loss 2.500" in stream.getvalue()


def test_clock_times():
    assert [clock(seconds) for seconds in (-1, 59.4, 75, 3700)] == ["0:00", "0:59", "1:15", "1:01:40"]
