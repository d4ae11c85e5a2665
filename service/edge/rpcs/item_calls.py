"""Calls with many items, each answered as by the unary method of its kind (`ItemCalls`).

How items run is in `items`, what their messages are in `batches`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar

from export.bundle.manifest import Task
from service.edge.admission.preparation import Preparation
from service.edge.calls.batches import check_model, defaults_bytes, items_of, merged, response_of
from service.edge.calls.call import Call
from service.edge.calls.items import Answer, ItemRunner
from service.edge.models.served_model import ServedModel
from service.edge.requests.catalog import Catalog
from service.edge.rpcs.model_calls import ModelCalls

Messages = AsyncGenerator[Any, None]
T = TypeVar("T")


class ItemCalls(ModelCalls):
    """Calls to the models of one server that may have many items. Event-loop thread only."""

    def __init__(
        self, catalog: Catalog, preparation: Preparation, items: ItemRunner, *, log_text: bool = False
    ) -> None:
        """items: runs them. log_text: see `ModelCalls`."""
        super().__init__(catalog, preparation, log_text=log_text)
        self.items = items

    async def batch(
        self,
        messages: Messages,
        call: Call,
        answer: Answer,
        response_type: type[T],
        *tasks: Task,
        can: Callable[[ServedModel], bool] = lambda _: True,
        find: Callable[[Any, Call], ServedModel] | None = None,
    ) -> AsyncGenerator[T, None]:
        """The results of a call with many items, each answered by `answer`. tasks, can: see `find` of `ModelCalls`.
        find: instead of it, for what the items share."""
        first = await anext(messages)
        model = find(first.defaults, call) if find else self.find(first.defaults.model, call, *tasks, can=can)

        async def checked(request: Any, item: Call) -> Any:
            whole = merged(request, first.defaults)
            check_model(whole.model, first.defaults, model)
            return await answer(whole, item)

        size = defaults_bytes(first.defaults)
        items = items_of(first, messages, call)
        outcomes = self.items.run(
            call, items, checked, window=model.pool.window, in_order=first.in_order, item_bytes=size
        )
        async with contextlib.aclosing(outcomes):
            async for some in outcomes:
                yield response_of(response_type, some)
