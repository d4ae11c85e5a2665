"""`glossa serve`, and whether a server is ready: `glossa healthcheck`.

The flags of `serve` are the fields of `ServerSettings`, so a new setting needs nothing here.
"""

from __future__ import annotations

import functools
import inspect
import time
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
    from service.settings.config import ServerSettings

    parameters = []
    for name, field in ServerSettings.model_fields.items():
        if name == "models":
            continue
        is_switch = field.annotation is bool
        default = (
            ""
            if field.default in (None, "", {}, ())
            else f"; default: {str(field.default).lower() if is_switch else field.default}"
        )
        option = typer.Option(help=f"{field.description}{default}", metavar=None if is_switch else "VALUE")
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
    models: Annotated[list[str] | None, typer.Argument(metavar="NAME=BUNDLE…", help="what to serve")] = None,
) -> None:
    """Serve bundles over gRPC, with health checks and metrics on an HTTP port of their own.

    Each setting is a flag (--max-queue 64), a variable (GLOSSA_MAX_QUEUE=64) or a key of the YAML file that --config
    names (max_queue: 64); the first of these that is given counts.
    """
    from service.edge.observability.logs import silence_grpc
    from service.errors import StartupError
    from service.settings.config import load_settings

    with report_errors(StartupError):
        given: dict[str, Any] = dict(context.obj)
        if models:
            given["models"] = models
        settings = load_settings(given)
        silence_grpc()
        from service.server import serve as run

        run(settings)


def healthcheck(
    http_port: Annotated[int, typer.Option(help="ops port of the server", envvar="GLOSSA_HTTP_PORT")] = OPS_PORT,
    wait_s: Annotated[float, typer.Option("--wait", help="seconds to wait until the server is ready")] = 0.0,
) -> None:
    """Exit code 0 if the server on this machine is ready, or becomes ready within --wait seconds."""
    limit_s = time.monotonic() + wait_s
    while not is_ready(f"http://127.0.0.1:{http_port}"):
        if time.monotonic() >= limit_s:
            with report_errors():
                raise UsageError(
                    f"no ready server on ops port {http_port}" + (f" within {wait_s:g} s" if wait_s else "")
                )
        time.sleep(POLL_S)
