"""The `glossa` command as its users run it, within the process of a test."""

import asyncio

from typer.testing import CliRunner

import cli.main
from model.training.train import Interrupted

PAIRS = [("a b c", "a b c"), ("x y", "x y")]


def run(*arguments, fails=False, lines=None):
    """What the command prints, standard error included. fails: with which exit code it must end, if not 0."""
    result = CliRunner().invoke(cli.main.app, [str(argument) for argument in arguments], input=lines)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == int(fails), result.output
    return result.output


async def ask(edge, *arguments, fails=False, lines=None):
    """The same of a verb that calls a server without engines."""
    return await asyncio.to_thread(run, *arguments, "--address", edge.address, fails=fails, lines=lines)


def interrupted(*_, **__):
    """In the place of a training: one that is stopped."""
    raise Interrupted("stopped after step 5, state saved in x; go on with --resume")
