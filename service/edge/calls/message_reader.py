"""How the later messages of a call's stream are read (`MessageReader`): each admitted anew, as its tokens may have been
withdrawn, and parsed if there is memory for what it may become.

What the messages mean, and whether they are answered in turn or together, is decided elsewhere.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.message import Message

from service.edge.admission.admission import Admission
from service.edge.admission.request_memory import message_bytes
from service.edge.calls.call import Call
from service.edge.calls.conversation import read_on
from service.edge.security.access import Guard
from service.errors import InvalidRequest, MemoryLimit, ShuttingDown

Parse = Callable[[bytes], Message | None]


class MessageReader:
    """Reads for the calls of one server. Event-loop thread only."""

    def __init__(
        self,
        admission: Admission,
        guard: Guard,
        timeout_s: float,
        clock: Callable[[], float],
        leave: Callable[[Call], None],
    ) -> None:
        """timeout_s: until a message for which there is no memory is refused. leave: of a call that has waited for a
        message for too long."""
        self._admission, self._guard, self._timeout_s, self._clock = admission, guard, timeout_s, clock
        self._leave = leave

    async def in_turn(self, call: Call, context: Any, parse: Parse) -> Message | None:
        """The next message of a call that has nothing to do until it comes, or None at the end of the stream. Raises
        RequestError."""
        self._check_open()
        data = await self._admission.waits.read(context, call.rpc.peer, functools.partial(self._leave, call))
        if not self._is_message(data, call, context):
            return None
        call.budget.memory.grow(message_bytes(len(data)))
        return parsed(data, parse)

    async def ahead(self, call: Call, context: Any, parse: Parse) -> Message | None:
        """The next message of a call that answers others meanwhile, and knows how long it may wait."""
        self._check_open()
        data = await read_on(context.read())
        if not self._is_message(data, call, context):
            return None
        until_s = self._clock() + self._timeout_s
        while True:
            try:
                call.budget.memory.grow(message_bytes(len(data)))
                return parsed(data, parse)
            except MemoryLimit as error:
                await call.budget.wait_for_room(error, until_s)

    def _check_open(self) -> None:
        if self._admission.is_draining:
            raise ShuttingDown

    def _is_message(self, data: Any, call: Call, context: Any) -> bool:
        """Whether the stream has not ended."""
        if data is grpc.aio.EOF:
            return False
        self._guard.caller(context.invocation_metadata() or (), call.rpc.peer)
        return True


def parsed(data: bytes, parse: Parse) -> Message:
    """A message of its bytes. Raises InvalidRequest."""
    message = parse(data)
    if message is None:
        raise InvalidRequest("request", "is not a message of this method, or has text that is not UTF-8")
    return message
