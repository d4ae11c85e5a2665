"""The chat template of a model: the messages of a chat → the text of a prompt (`ChatTemplate`).

A template is Jinja, rendered by an immutable sandbox, as `apply_chat_template` of transformers 5.23 renders it. It
comes with the model and is trusted as much as the model's graphs are; the messages are a client's. So that neither a
mistake of a template nor what a client sends holds up a server, a rendering has bounds (`_Environment`): every loop and
call checks the processor time, every text that is put together its length. One step of a C function is not interrupted:
a template that is made to take long in one still can.

Which texts of the result are special tokens is `model.prompts.chat_tokens`'s. Needs jinja2 alone: servers read it.

    ChatTemplateError (ValueError)   a template that cannot be read, or does not render these messages
    ├── ChatRefused                  the template itself refuses them
    └── ChatTooLong                  more time or text than a prompt may take
"""

from __future__ import annotations

import json
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property, wraps
from typing import Any

import jinja2.ext
import jinja2.meta
import jinja2.nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_TEMPLATE_BYTES = 1 << 18  # the longest published ones, with rules for tools, have some 20 kB
MAX_CHARACTERS = 1 << 20  # of a prompt, and of any text in between
MAX_SECONDS = 1.0  # of processor time: a chat of 100 messages takes 1 to 5 ms
MAX_NUMBER = 100_000  # of what a call is given, such as a width; as `range` of the sandbox
GIVEN = ("messages", "add_generation_prompt")  # the variables that are no arguments
_WIDE = re.compile(r"\d{6}")  # a width in a format


class ChatTemplateError(ValueError):
    """A template cannot be read, or does not render these messages."""


class ChatRefused(ChatTemplateError):
    """The template refuses these messages, in its own words."""


class ChatTooLong(ChatTemplateError):
    """A rendering takes more time, or gives more text, than a prompt may."""


class ChatTemplate:
    """A compiled template. Never changed after construction, so threads may share one.

    special_tokens: the variables of special tokens, such as bos_token, with their texts.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Raises ChatTemplateError with the line of what is no Jinja."""
        if (size := len(source.encode())) > MAX_TEMPLATE_BYTES:
            raise ChatTemplateError(f"must be at most {MAX_TEMPLATE_BYTES} bytes, got {size}")
        self.source, self.special_tokens = source, dict(special_tokens)
        self._environment = _Environment()
        try:
            with self._environment.bounded():
                self._template = self._environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ChatTemplateError(f"line {error.lineno}: {error.message}") from error
        except (TemplateError, SyntaxError, RecursionError, ValueError, MemoryError, OverflowError) as error:
            raise ChatTemplateError(f"cannot be compiled: {error!r:.200}") from error

    @classmethod
    def from_json(cls, data: bytes) -> ChatTemplate:
        """From the content of CHAT_TEMPLATE. Raises ChatTemplateError."""
        try:
            values = json.loads(data)
            source, special = values["chat_template"], values["special_tokens"]
        except (ValueError, RecursionError, KeyError, TypeError) as error:
            raise ChatTemplateError(f"must be JSON with chat_template and special_tokens: {error!r:.200}") from error
        if not isinstance(source, str) or not isinstance(special, dict):
            raise ChatTemplateError("chat_template must be a text, special_tokens an object of texts")
        if not all(isinstance(text, str) for text in special.values()):
            raise ChatTemplateError("special_tokens must be an object of texts")
        return cls(source, special)

    def to_json(self) -> bytes:
        """The content of CHAT_TEMPLATE."""
        values = {"chat_template": self.source, "special_tokens": self.special_tokens}
        return (json.dumps(values, indent=1, ensure_ascii=False) + "\n").encode()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        arguments: Mapping[str, Any] | None = None,
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        """The text of a prompt. messages: each with role, content and whatever else the template reads, plain JSON
        values. arguments: further variables, such as tools. add_generation_prompt: with the beginning of an answer.

        Raises ChatTemplateError.
        """
        variables = {"tools": None, "documents": None, **self.special_tokens, **(arguments or {})}
        try:
            with self._environment.bounded():
                return self._template.render(
                    {**variables, "messages": messages, "add_generation_prompt": add_generation_prompt}
                )
        except ChatTemplateError:
            raise
        except Exception as error:  # a template may do whatever an expression of Python can
            kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
            raise ChatTemplateError(f"{kind}{error}") from error

    def render_continued(
        self, messages: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any] | None = None
    ) -> str:
        """The text up to the end of the last message's content, which the answer continues. Where the template trims
        that end, the text is trimmed, too. Raises ChatTemplateError."""
        mark = f"{secrets.randbits(64):020}"  # digits: no filter changes them
        last = {**messages[-1], "content": f"{messages[-1]['content']}{mark} "}
        before, found, after = self.render([*messages[:-1], last], arguments, add_generation_prompt=False).rpartition(
            mark
        )
        if not found:
            raise ChatTemplateError("the template leaves out the content of the last message, so nothing continues it")
        return before if after.startswith(" ") else before.rstrip()

    @cached_property
    def variables(self) -> frozenset[str]:
        """The names that it reads and neither sets nor gets from its environment."""
        found = jinja2.meta.find_undeclared_variables(self._environment.parse(self.source))
        return frozenset(found - self._environment.globals.keys())

    @cached_property
    def literals(self) -> str:
        """The texts that stand in the template itself, apart from each other."""
        tree = self._environment.parse(self.source)
        texts = [node.data for node in tree.find_all(jinja2.nodes.TemplateData)]
        texts += [node.value for node in tree.find_all(jinja2.nodes.Const) if isinstance(node.value, str)]
        return "\0".join([*texts, *self.special_tokens.values()])


class _CodeGenerator(CodeGenerator):
    """Has loops and concatenations checked."""

    def visit_For(self, node: jinja2.nodes.For, frame: Frame) -> None:
        steps = jinja2.nodes.EnvironmentAttribute("steps")
        node.iter = jinja2.nodes.Call(steps, [node.iter], [], None, None)
        super().visit_For(node, frame)

    def visit_Concat(self, node: jinja2.nodes.Concat, frame: Frame) -> None:
        self.write("concat(map(str, (")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write(")))")


class _Generation(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}`, which marks answers for training: its body."""

    tags = {"generation"}  # noqa: RUF012  # as the library declares it

    def parse(self, parser: Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


class _Environment(ImmutableSandboxedEnvironment):
    """Jinja as templates of transformers expect it, within bounds. Within `bounded` alone."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})
    code_generator_class = _CodeGenerator

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols])
        self._run = threading.local()
        self.filters["tojson"] = _to_json
        self.filters = {name: self._within_bounds(function) for name, function in self.filters.items()}
        self.globals |= {"raise_exception": _refuse, "strftime_now": _now}
        self.globals |= {"dict": _new_dict, "namespace": _new_namespace}
        del self.globals["lipsum"]  # text in one step
        self.concat = self._joined  # type: ignore[method-assign]  # of every text that is put together

    def bounded(self) -> _Environment:
        """A context in which this thread may take MAX_SECONDS."""
        return self

    def __enter__(self) -> None:
        self._run.ends_s = time.thread_time() + MAX_SECONDS

    def __exit__(self, *exception: object) -> None:
        del self._run.ends_s

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805  # names may be self
        __self._check_time()
        _check_arguments(__obj, args, kwargs)
        return _short(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        self._check_time()
        sizes = [len(side) if isinstance(side, str | list | tuple) else side for side in (left, right)]
        is_long = operator == "*" and isinstance(sizes[0], int) and isinstance(sizes[1], int)
        if is_long and sizes[0] * sizes[1] > MAX_CHARACTERS and not sizes == [left, right]:
            raise _too_long()
        if operator == "**" and any(isinstance(side, int) and abs(side) > 1000 for side in (left, right)):
            raise ChatTooLong("takes a power of a number above 1000")
        if operator == "%" and isinstance(left, str):
            _check_arguments(left.format, right if isinstance(right, tuple) else (right,), {})
        return _short(super().call_binop(context, operator, left, right))

    def _within_bounds(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def filtered(*args: Any, **kwargs: Any) -> Any:
            self._check_time()
            _check_arguments(function, args, kwargs)
            return _short(function(*args, **kwargs))

        return filtered

    def steps(self, items: Iterable[Any]) -> Iterator[Any]:
        """The items of a loop."""
        for item in items:
            self._check_time()
            yield item

    def _joined(self, parts: Iterable[str]) -> str:
        found, size = [], 0
        for part in parts:
            self._check_time()
            size += len(part)
            if size > MAX_CHARACTERS:
                raise _too_long()
            found.append(part)
        return "".join(found)

    def _check_time(self) -> None:
        if time.thread_time() > self._run.ends_s:
            raise ChatTooLong(f"takes more than {MAX_SECONDS:g} s of processor time")


class _Namespace(Namespace):
    """Variables that a loop may set; none with a name of Python's own."""

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _too_long() -> ChatTooLong:
    return ChatTooLong(f"gives more than {MAX_CHARACTERS} characters")


def _short(value: Any) -> Any:
    """A value, if it is no text that is too long."""
    if isinstance(value, str | list | tuple) and len(value) > MAX_CHARACTERS:
        raise _too_long()
    return value


def _check_arguments(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuses numbers that make a text long in one step: widths and counts, in formats, too."""
    if any(isinstance(value, int) and abs(value) > MAX_NUMBER for value in (*args, *kwargs.values())):
        raise ChatTooLong(f"gives a function a number above {MAX_NUMBER}")
    if getattr(function, "__name__", "") in ("format", "format_map", "do_format"):
        method = getattr(function, "__wrapped__", function)  # the sandbox wraps the method of a text
        owner = getattr(method, "__self__", args[0] if args else "")
        if isinstance(owner, str) and _WIDE.search(owner):
            raise ChatTooLong("formats a text with a width of six digits")


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """The filter of transformers: that of Jinja escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: object) -> None:
    raise ChatRefused(str(message))


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace has no attribute {name!r}: names begin with a letter")


def _new_namespace(*args: Any, **kwargs: Any) -> _Namespace:
    attributes = dict(*args, **kwargs)
    for name in attributes:
        _check_name(name)
    return _Namespace(attributes)


def _new_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)
