"""`glossa chat`: a conversation with a model on a running server, whose chat template makes the prompts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.connection import at_line, with_client
from cli.flags import DECODING, ModelName
from cli.options_file import with_options_file
from cli.requests.ask import show_answer
from cli.terminal import AsJson, UsageError, print_json
from cli.text_input import lines_of, read_text

if TYPE_CHECKING:
    from glossa.client import Client

COMMANDS = "/reset forgets the conversation, /undo its last question and answer, /save FILE writes it, /exit ends"
SEVERAL = (
    "num_sequences",
    "num_hypotheses",
    "return_alternatives",
    "echo",
)  # answers that no conversation goes on from


@with_options_file({name: DECODING[name] for name in ("max_tokens", "temperature", "seed")})
@with_client
def chat(
    text: Annotated[str | None, typer.Argument(help="one message; without one, each line of standard input")] = None,
    system: Annotated[str, typer.Option(help="a message before all others that says what the model is to do")] = "",
    history: Annotated[
        Path | None, typer.Option(help="go on from this conversation: JSON, a list of objects with role and content")
    ] = None,
    argument: Annotated[
        list[str] | None, typer.Option(help="NAME=JSON: a variable of the chat template; may be repeated")
    ] = None,
    model: ModelName = "",
    as_json: AsJson = False,
    *,
    client: Client,
    options: dict[str, Any],
) -> None:
    """Talk to a model: each message is answered, streamed, with the whole conversation before it.

    Lines that begin with / are commands: /reset, /undo, /save FILE, /exit. Messages that are too long for the model
    together are refused; /reset or /undo makes room. In a terminal an error does not end the conversation.
    """
    if refused := next((name for name in SEVERAL if options.get(name)), None):
        raise UsageError(f"--options: {refused}: a conversation goes on from one answer; use `glossa generate`")
    asked = {"model": model, "template_arguments": arguments_of(argument or ()), **options}
    conversation = Conversation(client, start_of(system, history), asked, as_json=as_json)
    if text is not None:
        return conversation.ask(text)
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        typer.echo(COMMANDS, err=True)
    converse(conversation, lines_of(), is_terminal=is_terminal)


class Conversation:
    """A conversation with a model. messages: so far; start: those that /reset keeps."""

    def __init__(
        self, client: Client, start: list[dict[str, Any]], options: dict[str, Any], *, as_json: bool = False
    ) -> None:
        self._client, self._start, self._options, self._as_json = client, start, options, as_json
        self.messages = list(start)

    def ask(self, text: str) -> None:
        """Print the answer to a message. One without an answer is no part of the conversation. Raises ClientError."""
        asked, shown = [*self.messages, {"role": "user", "content": text}], ""
        for piece in self._client.stream_generate(messages=asked, **self._options):
            if piece.answer is not None:
                if self._as_json:
                    print_json(piece.answer)
                else:
                    show_answer(piece.answer, text, False, already=shown)
                self.messages = [*asked, {"role": "assistant", "content": piece.answer.text}]
            elif not self._as_json:
                typer.echo(piece.text, nl=False)
                shown += piece.text

    def command(self, line: str) -> bool:
        """Obey a command; False ends the conversation. Raises UsageError, OSError."""
        name, _, value = line.partition(" ")
        if name == "/exit":
            return False
        if name == "/reset":
            self.messages = list(self._start)
        elif name == "/undo":
            self.messages = self.messages[: max(len(self._start), len(self.messages) - 2)]
        elif name == "/save" and value.strip():
            text = json.dumps(self.messages, indent=1, ensure_ascii=False)
            Path(value.strip()).write_text(f"{text}\n", encoding="utf-8")
        else:
            raise UsageError(f"{line}: no such command; {COMMANDS}")
        return True


def converse(conversation: Conversation, lines: Iterable[str], *, is_terminal: bool) -> None:
    """Answer lines until one says /exit. is_terminal: an error is printed and does not end it. Raises otherwise
    UsageError, with the number of a line that the server refuses."""
    from glossa.client import ClientError

    numbered = enumerate(lines, start=1)
    while True:
        if is_terminal:
            typer.echo("> ", nl=False, err=True)
        number, line = next(numbered, (0, "/exit"))
        try:
            with at_line(number):
                if line.startswith("/"):
                    if not conversation.command(line):
                        return
                elif line.strip():
                    conversation.ask(line)
        except (ClientError, UsageError, OSError) as error:
            if not is_terminal:
                raise
            typer.echo(f"error: {error}", err=True)


def start_of(system: str, file: Path | None) -> list[dict[str, Any]]:
    """The messages that a conversation begins with. Raises UsageError, OSError."""
    start: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    if file is None:
        return start
    try:
        values = json.loads(read_text(file))
    except ValueError as error:
        raise UsageError(f"--history {file}: is no JSON: {error}") from error
    if not isinstance(values, list) or not all(isinstance(one, dict) and "role" in one for one in values):
        raise UsageError(f"--history {file}: must be a list of objects with role and content")
    if system and values and values[0]["role"] == "system":
        raise UsageError(f"--system: {file} begins with a system message; leave one of them out")
    return start + values


def arguments_of(written: Iterable[str]) -> dict[str, Any]:
    """Variables of a chat template, given as NAME=JSON. Raises UsageError."""
    given: dict[str, Any] = {}
    for text in written:
        name, separator, value = text.partition("=")
        try:
            if not separator or not name:
                raise ValueError
            given[name] = json.loads(value)
        except ValueError:
            problem = "must be NAME=JSON, such as enable_thinking=false or date='\"1 May\"'"
            raise UsageError(f"--argument {text}: {problem}") from None
    return given
