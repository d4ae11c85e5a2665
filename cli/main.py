"""The `glossa` command: its verbs, one module for each stage, and `--version`.

A verb imports its stage only when it is called: `glossa --help` answers at once, `glossa serve` runs without torch.
Exit code 0 means success. A stage's refusal is printed as one line on stderr: what failed, the value, the limit, the
fix; anything else is a defect and shows its traceback.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated

import typer

from cli.connection import Connection, with_connection
from cli.demo import demo
from cli.export import export, verify
from cli.load.bench import bench
from cli.requests.ask import generate, score, translate
from cli.requests.attend import attend
from cli.requests.chat import chat
from cli.requests.detect import detect
from cli.requests.encode import classify, embed, fill_mask, similarity, tag
from cli.requests.tokens import tokens
from cli.serving.admin import admin
from cli.serving.doctor import doctor
from cli.serving.serve import ServeCommand, healthcheck, serve
from cli.serving.token import token
from cli.serving.web import web
from cli.training.corpus import corpus
from cli.training.distill import distill
from cli.training.ensemble import ensemble
from cli.training.evaluate import evaluate
from cli.training.import_model import import_
from cli.training.train import train
from cli.verb import Command, Verb

VERBS: Mapping[str, Mapping[str, Callable[..., None]]] = {
    "Train and export": {
        "demo": demo,
        "corpus": corpus,
        "train": train,
        "import": import_,
        "ensemble": ensemble,
        "distill": distill,
        "eval": evaluate,
        "export": export,
        "verify": verify,
    },
    "Serve": {
        "serve": serve,
        "web": web,
        "healthcheck": healthcheck,
        "token": token,
        "doctor": doctor,
        "bench": bench,
    },
    "Call a server": {
        "translate": translate,
        "detect": detect,
        "generate": generate,
        "chat": chat,
        "score": score,
        "embed": embed,
        "similarity": similarity,
        "fill-mask": fill_mask,
        "classify": classify,
        "tag": tag,
        "attend": attend,
        "tokens": tokens,
    },
}

app = typer.Typer(cls=Command, no_args_is_help=True, pretty_exceptions_enable=False)


def print_version(wanted: bool) -> None:
    """Print the version and exit, if `--version` was given."""
    if wanted:
        from glossa.version import VERSION

        typer.echo(f"glossa {VERSION}")
        raise typer.Exit


@app.callback()
@with_connection("connection")
def glossa(
    version: Annotated[
        bool, typer.Option("--version", help="print the version and exit", callback=print_version, is_eager=True)
    ] = False,
    *,
    connection: Connection,
) -> None:
    """Train Transformers in PyTorch, export them to ONNX, and serve them over gRPC."""


for panel, verbs in VERBS.items():
    for name, verb in verbs.items():
        app.command(name, rich_help_panel=panel, cls=ServeCommand if verb is serve else Verb)(verb)
app.add_typer(admin, name="admin", rich_help_panel="Serve")


def main() -> None:
    """The entry point of the command."""
    app()


if __name__ == "__main__":
    main()
