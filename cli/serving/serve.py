"""`glossa serve`, and whether a server is ready: `glossa healthcheck`.

The flags of `serve` are the fields of `ServerSettings`, so a new setting needs nothing here.
"""

from __future__ import annotations

import functools
import inspect
import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.main import get_command

from cli.local_server import OPS_PORT, is_ready
from cli.terminal import UsageError, report_errors
from cli.verb import Verb

POLL_S = 0.1


class ServeCommand(Verb):
    """A command with a flag for each server setting. The settings are imported when it is parsed, completed or asked
    for help, so that `glossa --help` need not load them."""

    def get_params(self, ctx: Any) -> list[Any]:
        return [*super().get_params(ctx), *setting_flags()]

    def invoke(self, ctx: Any) -> Any:
        """Move the settings that were given from the parameters of the verb to `ctx.obj`, by field name."""
        given = {flag.name: ctx.params.pop(flag.name) for flag in setting_flags()}
        ctx.obj = {name: value for name, value in given.items() if value is not None}
        return super().invoke(ctx)


@functools.cache
def setting_flags() -> tuple[Any, ...]:
    """A flag for each field of ServerSettings but `models`. Values stay text: the settings convert and check them."""
    from service.settings.config import ServerSettings, shown_default

    parameters = []
    for name, field in ServerSettings.model_fields.items():
        if name == "models":
            continue
        is_switch = field.annotation is bool
        help = f"{field.description}; default: {shown_default(field)}"
        option = typer.Option(help=help, metavar=None if is_switch else "VALUE")
        annotation = Annotated[bool | None, option] if is_switch else Annotated[str | None, option]
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation))

    def settings(**_: Any) -> None: ...

    settings.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    settings.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    declared = typer.Typer(add_completion=False)
    declared.command()(settings)
    return tuple(get_command(declared).params)


def serve(
    context: typer.Context,
    models: Annotated[list[str] | None, typer.Argument(metavar="NAME=BUNDLE", help="what to serve")] = None,
) -> None:
    """Serve bundles over gRPC, with health checks and metrics on an HTTP port of their own.

    Each setting is a flag (--max-queue 64), a variable (GLOSSA_MAX_QUEUE=64) or a key of the YAML file that --config
    names (max_queue: 64); the first of these that is given counts. docs/settings.yaml has them all.
    """
    from service.edge.observability.logs import silence_grpc
    from service.errors import StartupError
    from service.settings.loading import load_settings

    with report_errors(StartupError):
        given: dict[str, Any] = dict(context.obj)
        if models:
            given["models"] = models
        settings = load_settings(given)
        silence_grpc()
        from service.server import serve as run

        run(settings)


def healthcheck(
    http_port: Annotated[
        int | None, typer.Option(help="ops port of the server; default: 9464", envvar="GLOSSA_HTTP_PORT")
    ] = None,
    http_host: Annotated[
        str | None, typer.Option(help="its address; default: 127.0.0.1", envvar="GLOSSA_HTTP_HOST")
    ] = None,
    wait_s: Annotated[float, typer.Option("--wait", help="seconds to wait until the server is ready")] = 0.0,
) -> None:
    """Exit code 0 if the server on this machine is ready, or becomes ready within --wait seconds.

    What no flag and no variable names is read from the YAML file that GLOSSA_CONFIG names.
    """
    with report_errors():
        address = ops_address({"http_host": http_host, "http_port": http_port})
        limit_s = time.monotonic() + wait_s
        while not is_ready(f"http://{address}"):
            if time.monotonic() >= limit_s:
                within = f" within {wait_s:g} s" if wait_s else ""
                raise UsageError(
                    f"no ready server with the ops port {address}{within}; name another with --http-port and "
                    "--http-host, or start one with `glossa serve NAME=BUNDLE`"
                )
            time.sleep(POLL_S)


def ops_address(given: dict[str, Any]) -> str:
    """HOST:PORT at which the ops port can be reached. given: the settings of flags and variables; None: not given.
    Raises UsageError."""
    if None in given.values() and (path := os.environ.get("GLOSSA_CONFIG")):
        from service.errors import StartupError
        from service.settings.settings_file import settings_of

        try:
            of_file = settings_of(Path(path))
        except StartupError as error:
            raise UsageError(str(error)) from None
        given = {name: of_file.get(name) if value is None else value for name, value in given.items()}
    host = given["http_host"] or "127.0.0.1"
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    port = OPS_PORT if given["http_port"] is None else given["http_port"]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
