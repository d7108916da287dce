"""Work that must not be cut off in the middle."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import TypeVar

from semel.errors import describe

T = TypeVar("T")

_logger = logging.getLogger("semel.tasks")


async def unbroken(work: Awaitable[T]) -> T:
    """Finish *work* even if the caller is cancelled, and only then be cancelled.

    A statement that is cut off costs its connection, and leaves it open if the event loop ends.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()) is not None:
            _logger.warning("what a cancelled call had begun failed: %s", describe(error))
        raise
