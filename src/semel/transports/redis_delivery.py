"""What a member of a group on Redis Streams holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from semel.wire import WireMessage

if TYPE_CHECKING:
    from semel.transports.redis_subscription import RedisSubscription


@dataclass(slots=True, eq=False)
class Lane:
    """One partition of the topic."""

    number: int
    key: str
    token: str = ""  # of our lease; empty if it is not ours
    next_pending: str | None = "-"  # from where to look for what nobody acked; None: done
    last_id: str = "0-0"
    leaving: bool = False
    open: int = 0  # deliveries that a consumer has in hand


@dataclass(slots=True, eq=False, order=False)
class Entry:
    """An entry of a stream in our hands; they sort as they arrived."""

    number: int
    id: str
    lane: Lane
    token: str
    wire: WireMessage
    attempt: int
    block: str = field(default="")  # what a delay of this entry holds back

    def __lt__(self, other: Entry) -> bool:
        return self.number < other.number


class RedisDelivery:
    """One message in our hands."""

    __slots__ = ("_attempt", "_subscription", "entry")

    def __init__(self, subscription: RedisSubscription, entry: Entry) -> None:
        self._subscription = subscription
        self._attempt = entry.attempt
        self.entry = entry

    @property
    def wire(self) -> WireMessage:
        """The bytes and headers."""
        return self.entry.wire

    @property
    def attempt(self) -> int:
        """How often this was delivered, counted in Redis."""
        return self._attempt

    async def ack(self) -> None:
        """Never deliver this again to this group."""
        await self._subscription.confirm(self)

    async def nack(self, *, delay: float = 0.0) -> None:
        """Deliver this again, not before *delay* seconds."""
        await self._subscription.hand_back(self, delay)


def to_wire(topic: str, fields: list[bytes]) -> WireMessage:
    """Return what the fields of an entry say."""
    headers: dict[str, str] = {}
    key: str | None = None
    body = b""
    for name, value in zip(fields[::2], fields[1::2], strict=True):
        if name == b"data":
            body = value
        elif name == b"key":
            key = value.decode("utf-8", "backslashreplace")
        else:
            # Whatever the bytes are, two different ones must not become the same text.
            headers[name.decode("utf-8", "backslashreplace")] = value.decode(
                "utf-8", "backslashreplace"
            )
    return WireMessage(topic, headers.get("ce_partitionkey", key), headers, body)
