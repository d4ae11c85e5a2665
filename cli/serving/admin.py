"""`glossa admin`: exchange the models of a running server."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.connection import PANEL, Connection, with_connection
from cli.flags import SourceLanguage, TargetLanguage
from cli.terminal import AsJson, UsageError, print_json, report_errors
from cli.text_input import read_text
from cli.verb import Verb

if TYPE_CHECKING:
    from glossa.client.admin import AdminClient, Canary, Version

BOUNDS = ("failed", "p99", "chrf", "disagreement", "memory")
admin = typer.Typer(no_args_is_help=True, help="Exchange the models of a running server.")

Address = Annotated[
    str,
    typer.Option(
        help="unix:PATH of the server's --admin-socket, or HOST:PORT of its --admin-port",
        envvar="GLOSSA_ADMIN_ADDRESS",
        rich_help_panel=PANEL,
    ),
]
Model = Annotated[str, typer.Argument(help="name of a model of the server")]
VersionName = Annotated[str, typer.Argument(help="name of a version; `glossa admin versions` lists them")]
KeepPrevious = Annotated[
    bool, typer.Option("--keep-previous", help="the default before it goes on serving those who name it")
]


@contextlib.contextmanager
def _client(address: str, connection: Connection) -> Iterator[AdminClient]:
    from glossa.client import ClientError
    from glossa.client.admin import AdminClient

    with report_errors(ValueError):
        if not address:
            raise UsageError(
                "--address: not set; give unix:PATH of the server's --admin-socket, or HOST:PORT of its --admin-port"
            )
        try:
            with AdminClient(address, **connection.settings) as client:
                yield client
        except ClientError as error:
            if error.code != "UNAVAILABLE" or error.reason or error.hint:
                raise UsageError(str(error)) from error
            raise UsageError(
                f"no admin service at {address}: start the server with --admin-socket or --admin-port ({error})"
            ) from error


@with_connection("connection", without="address")
def load(
    model: Model,
    bundle: Annotated[
        Path | None, typer.Argument(help="directory, on the server; without one: that of the default version")
    ] = None,
    version: Annotated[str, typer.Option(help="name of the new version; default: digits of its digest")] = "",
    keep_default: Annotated[
        bool, typer.Option("--keep-default", help="the default stays; requests name the version as MODEL@VERSION")
    ] = False,
    keep_previous: KeepPrevious = False,
    evaluate: Annotated[
        Path | None, typer.Option(help="TSV of texts and references; refuse a version whose answers are worse")
    ] = None,
    max_loss: Annotated[float, typer.Option(help="with --evaluate: points of chrF that it may lose")] = 1.0,
    source_language: SourceLanguage = "",
    target_language: TargetLanguage = "",
    address: Address = "",
    as_json: AsJson = False,
    *,
    connection: Connection,
) -> None:
    """Open a bundle as a version of a model. If it is good, requests go to it from then on, and none is lost."""
    with _client(address, connection) as client:
        test_set = None if evaluate is None else read_test_set(evaluate)
        loaded = client.load(
            model,
            "" if bundle is None else bundle.absolute(),
            version=version,
            keep_default=keep_default,
            keep_previous=keep_previous,
            test_set=test_set,
            max_loss=max_loss,
            source_language=source_language,
            target_language=target_language,
        )
    if as_json:
        return print_json(loaded)
    show_versions([loaded.version], as_json)
    if loaded.chrf is not None:
        typer.echo(f"chrF {loaded.chrf:.2f}, of the default before it {loaded.default_chrf:.2f}")


@with_connection("connection", without="address")
def unload(
    model: Model, version: VersionName, address: Address = "", as_json: AsJson = False, *, connection: Connection
) -> None:
    """End a version that is not the default, when its last request has ended."""
    with _client(address, connection) as client:
        show_versions([client.unload(model, version)], as_json)


@with_connection("connection", without="address")
def versions(
    model: Annotated[str, typer.Argument(help="name of a model; without one: all models")] = "",
    address: Address = "",
    as_json: AsJson = False,
    *,
    connection: Connection,
) -> None:
    """List the versions of all models, and what they do."""
    with _client(address, connection) as client:
        show_versions(client.versions(model), as_json)


@with_connection("connection", without="address")
def default(
    model: Model, version: VersionName, address: Address = "", as_json: AsJson = False, *, connection: Connection
) -> None:
    """Make a version that is served the one of requests that name none."""
    with _client(address, connection) as client:
        show_versions([client.set_default(model, version)], as_json)


@with_connection("connection", without="address")
def rollback(
    model: Model,
    keep_previous: KeepPrevious = False,
    address: Address = "",
    as_json: AsJson = False,
    *,
    connection: Connection,
) -> None:
    """Make the default before the present one the default again."""
    with _client(address, connection) as client:
        show_versions([client.roll_back(model, keep_previous=keep_previous)], as_json)


@with_connection("connection", without="address")
def split(
    model: Model,
    weights: Annotated[
        list[str] | None, typer.Argument(help="VERSION=PERCENT, 100 together; without any: all to the default")
    ] = None,
    shadow: Annotated[
        str, typer.Option(help="VERSION=PERCENT: of requests to the default, that run on it too, answers dropped")
    ] = "",
    by_request_id: Annotated[
        bool, typer.Option("--by-request-id", help="spread a tenant's requests too, which otherwise get one version")
    ] = False,
    address: Address = "",
    as_json: AsJson = False,
    *,
    connection: Connection,
) -> None:
    """Spread the requests that name no version over versions that serve, until the server ends."""
    with _client(address, connection) as client:
        shares = [_share(each) for each in weights or ()]
        if len(dict(shares)) < len(shares):
            raise UsageError(f"each version must be named once, got {' '.join(weights or ())}")
        shadowed = _share(shadow) if shadow else None
        found = client.set_traffic(model, dict(shares), by_request_id=by_request_id, shadow=shadowed)
        show_versions(found, as_json)


@with_connection("connection", without="address")
def canary(
    model: Model,
    version: Annotated[str, typer.Argument(help="of the canary; without one: show the last canary")] = "",
    bounds: Annotated[
        list[str] | None,
        typer.Argument(help="BOUND=VALUE of failed, p99, chrf, disagreement and memory; see docs/reload.md"),
    ] = None,
    share: Annotated[int, typer.Option(help="percent of the requests without a version that it gets")] = 10,
    duration: Annotated[str, typer.Option("--for", help="how long it is judged, as 90s, 10m or 2h")] = "10m",
    patience: Annotated[
        str, typer.Option(help="for how long it breaks a bound until it goes back; default: a tenth of --for")
    ] = "",
    shadow: Annotated[int, typer.Option(help="percent of the default's requests that run on it too")] = 0,
    evaluate: Annotated[
        Path | None, typer.Option(help="TSV of texts and references, on which chrF is compared")
    ] = None,
    source_language: SourceLanguage = "",
    target_language: TargetLanguage = "",
    unload_loser: Annotated[
        bool, typer.Option("--unload", help="end the version that loses: this one, or the default before")
    ] = False,
    address: Address = "",
    as_json: AsJson = False,
    *,
    connection: Connection,
) -> None:
    """Have a version judged under a share of the traffic: a good one becomes the default, a bad one goes back."""
    with _client(address, connection) as client:
        if not version:
            return show_canaries(client.canaries(model), as_json)
        started = client.start_canary(
            model,
            version,
            share=share,
            duration_s=_seconds(duration, "--for"),
            patience_s=_seconds(patience, "--patience") if patience else None,
            shadow_share=shadow,
            bounds=dict(_bound(each) for each in bounds or ()),
            test_set=None if evaluate is None else read_test_set(evaluate),
            source_language=source_language,
            target_language=target_language,
            unload_loser=unload_loser,
        )
        show_canaries([started], as_json)


def _share(text: str) -> tuple[str, int]:
    name, _, percent = text.rpartition("=")
    if not (name and percent.isascii() and percent.isdecimal()):
        raise UsageError(f"a share must be VERSION=PERCENT, as v2=10, got {text!r}")
    return name, int(percent)


def _bound(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    if name not in BOUNDS:
        raise UsageError(f"a bound must be BOUND=VALUE, with one of {', '.join(BOUNDS)}, got {text!r}")
    try:
        return name, float(value)
    except ValueError:
        raise UsageError(f"{name}: must be a number, got {value!r}") from None


def _seconds(text: str, flag: str) -> float:
    """Of a time with a unit. Raises UsageError."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([smh])", text, re.ASCII)
    if found is None:
        raise UsageError(f"{flag}: must be a number with a unit, as 90s, 10m or 2h, got {text!r}")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]


def read_test_set(path: Path) -> list[tuple[str, str]]:
    """The texts and references of a TSV. Raises UsageError."""
    pairs = []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        text, separator, reference = line.partition("\t")
        if not (separator and reference.strip()):
            raise UsageError(f"{path}: line {number} is not a text, a tab and a reference")
        pairs.append((text, reference))
    return pairs


def show_versions(found: list[Version], as_json: bool) -> None:
    """Print one line for each version, or an array."""
    if as_json:
        return print_json([dataclasses.asdict(each) for each in found])
    rows: list[tuple[Any, ...]] = [("VERSION", "STATE", "CALLS", "BUNDLE", "PATH")]
    for each in found:
        name = f"{each.model}@{each.version}"
        state = f"{each.state}, default" if each.is_default else each.state
        if each.weight != 100 * each.is_default:
            state += f", {each.weight}%"
        if each.shadow_share:
            state += f", shadow {each.shadow_share}%"
        rows.append((name, state, each.calls, each.bundle_sha256[:12], each.path))
    widths = [max(len(str(row[column])) for row in rows) for column in range(4)]
    for row in rows:
        cells = [f"{cell!s:{width}}" for cell, width in zip(row, widths, strict=False)]
        typer.echo("  ".join([*cells, str(row[4])]).rstrip())


def show_canaries(found: list[Canary], as_json: bool) -> None:
    """Print a line for each canary, or an array."""
    if as_json:
        return print_json([dataclasses.asdict(each) for each in found])
    for each in found:
        bound = f" ({each.bound})" if each.bound else ""
        figures = f"{each.judged_s:.0f} s, {each.calls} requests, {each.failed} failed"
        reason = f": {each.reason}" if each.reason else ""
        typer.echo(f"{each.model}@{each.version} {each.state.replace('_', ' ')}{bound}, {figures}{reason}")


for _verb in (load, unload, versions, default, rollback, split, canary):
    admin.command(cls=Verb)(_verb)
