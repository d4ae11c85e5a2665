"""A verb of the command (`Verb`): what its parser and its help page have in common with those of the other verbs.

Flags of the connection are described once, by `glossa --help`, and may stand before or after a verb that calls a
server. Flags that moved to a file of options are refused with what to write into the file.
"""

from __future__ import annotations

import copy
from typing import Any

from typer.core import TyperCommand, TyperGroup

from cli.connection import PANEL
from cli.flag_names import Flags, flags_of
from cli.options_file import FLAG, refuse_moved
from cli.terminal import UsageError, report_errors

TYPED = "glossa.typed"  # the words of the command line, in what a context keeps
RECIPES = (".yaml", ".yml")


def connection_flags(command: Any) -> list[Any]:
    """The parameters of a command that are flags of the connection."""
    return [param for param in command.params if getattr(param, "rich_help_panel", None) == PANEL]


class Verb(TyperCommand):
    """A command whose help page omits the flags of the connection, and names what turns a switch off in its
    description: a column of its own would cut the names of others."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        page, shared = copy.copy(self), connection_flags(self)
        shown = [_without_column(param) for param in self.get_params(ctx) if param not in shared]
        page.get_params = lambda ctx: shown  # type: ignore[method-assign]
        if shared:
            flags = ", ".join(param.opts[0] for param in shared)
            page.epilog = f"Connection: {flags}; `glossa --help` describes them."
        TyperCommand.format_help(page, ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {flag for param in self.get_params(ctx) for flag in (*param.opts, *param.secondary_opts)}
        if FLAG in known:
            with report_errors():
                refuse_moved(args, known)
        ctx.meta[TYPED] = {arg.partition("=")[0] for arg in args}
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Take over the flags of the connection that stand before the verb, unless they stand after it, too."""
        root = ctx.find_root()
        own = {param.name for param in connection_flags(self)}
        for param in connection_flags(root.command):
            if not _is_given(root, param):
                continue
            if param.name not in own:
                with report_errors():
                    raise UsageError(f"{param.opts[0]}: is not for `{ctx.command_path}`; leave it out before the verb")
            if not _is_given(ctx, param):
                ctx.params[param.name] = root.params[param.name]
        with flags_of(_flags(ctx, self.params)):
            return super().invoke(ctx)


class Command(TyperGroup):
    """The command `glossa` before its verb. Verbs that call a server read the variables of the connection: those of
    verbs that call none may hold anything."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = copy.copy(self)
        given.params = [copy.copy(param) for param in self.params]
        for param in given.params:
            param.envvar = None
        return TyperGroup.parse_args(given, ctx, args)


def _flags(ctx: Any, params: list[Any]) -> Flags:
    """The flags of a verb, and which of them were typed. A recipe or a file of options may have fields, too."""
    names = dict[str, str]()
    for param in params:
        flags = [flag for flag in (*param.opts, *param.secondary_opts) if flag.startswith("--")]
        if flags:
            names[param.name.rstrip("_")] = next((flag for flag in flags if flag in ctx.meta[TYPED]), flags[0])
    values = {
        name: ctx.params[param.name]
        for param in params
        if (name := param.name.rstrip("_")) in names and _is_given(ctx, param)
    }
    for option in values.get("option") or ():
        name = option.partition("=")[0].strip().replace("-", "_")
        names[name], values[name] = f"--option {name}", None
    has_file = any(str(ctx.params.get("preset")).endswith(suffix) for suffix in RECIPES) or "options" in values
    return Flags(names, values, has_file)


def _without_column(param: Any) -> Any:
    if not param.secondary_opts:
        return param
    shown = copy.copy(param)
    shown.help, shown.secondary_opts = f"{param.help}; {param.secondary_opts[0]} turns it off", []
    return shown


def _is_given(ctx: Any, param: Any) -> bool:
    """Whether a parameter stands on the command line, in the part that `ctx` has parsed."""
    return getattr(ctx.get_parameter_source(param.name), "name", "") == "COMMANDLINE"
