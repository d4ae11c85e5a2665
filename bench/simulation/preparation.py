"""Work that the edge does in threads, on the virtual clock: a thread could not be simulated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from service.edge.admission.preparation import Preparation
from service.request import Caller

PREPARED_S = 0.0005

T = TypeVar("T")


class SimulatedPreparation(Preparation):
    """A `Preparation` without threads."""

    async def convert(self, caller: Caller, convert: Callable[[], T]) -> T:
        await asyncio.sleep(PREPARED_S)
        return convert()
