"""Lists, page by page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from semel.operations import Page

Row = TypeVar("Row")
Limit = Annotated[int, typer.Option(min=1, max=1000, help="At most so many.")]
_PATIENCE_SECONDS = 0.4


async def gather(
    read: Callable[[Any, int], Awaitable[Page[Row, Any]]], before: Any, limit: int
) -> tuple[list[Row], Any]:
    """Read pages until there are *limit* rows, or it takes too long; return where to go on."""
    rows: list[Row] = []
    give_up = monotonic() + _PATIENCE_SECONDS
    while True:
        page = await read(before, limit - len(rows))
        rows += page
        before = page.next
        if before is None or len(rows) >= limit or monotonic() > give_up:
            return rows, before
