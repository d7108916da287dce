"""A message in the hands of the application, where the process itself keeps account of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from semel.wire import WireMessage


class Settler(Protocol):
    """A subscription that takes the application's word about its deliveries."""

    def settle(self, entry: Any, attempt: int, *, again: bool, delay: float = 0.0) -> None:
        """Ack *entry* or deliver it *again*; `BusError` if the word comes twice or too late."""


class EntryDelivery:
    """A delivery of *entry*, acked or nacked exactly once. Its wire form is made on demand."""

    __slots__ = ("_attempt", "_entry", "_make_wire", "_settler", "_wire")

    def __init__(
        self, settler: Settler, entry: Any, attempt: int, make_wire: Callable[[], WireMessage]
    ) -> None:
        self._settler = settler
        self._entry = entry
        self._attempt = attempt
        self._make_wire = make_wire
        self._wire: WireMessage | None = None

    @property
    def wire(self) -> WireMessage:
        """The bytes and headers."""
        if self._wire is None:
            self._wire = self._make_wire()
        return self._wire

    @property
    def attempt(self) -> int:
        """1 for a first delivery, more after a nack, or if another member may have had it."""
        return self._attempt

    async def ack(self) -> None:
        """Never deliver this again to this group."""
        self._settler.settle(self._entry, self._attempt, again=False)

    async def nack(self, *, delay: float = 0.0) -> None:
        """Deliver this again after *delay* seconds, before what follows of its key."""
        self._settler.settle(self._entry, self._attempt, again=True, delay=delay)
