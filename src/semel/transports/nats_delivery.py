"""What a member of a group on JetStream holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as Interest

from semel.wire import WireMessage

if TYPE_CHECKING:
    from semel.transports.nats_subscription import NatsSubscription

KEY_HEADER = "Semel-Key"  # for the modes whose headers say nothing about the key


@dataclass(slots=True, eq=False)
class Lane:
    """One partition of the topic."""

    number: int
    consumer: str
    interest: Interest | None = None  # where its messages arrive, while it is ours
    asked_until: float = 0.0
    held: NatsDelivery | None = None


class NatsDelivery:
    """One message in our hands."""

    __slots__ = ("_attempt", "_subscription", "_wire", "lane", "reply", "sequence")

    def __init__(
        self,
        subscription: NatsSubscription,
        lane: Lane,
        message: Msg,
        sequence: int,
        attempt: int,
    ) -> None:
        self._subscription = subscription
        self._attempt = attempt
        self._wire = _wire(subscription.topic, message.headers or {}, message.data)
        self.lane = lane
        self.reply = message.reply
        self.sequence = sequence

    @property
    def wire(self) -> WireMessage:
        """The bytes and headers."""
        return self._wire

    @property
    def attempt(self) -> int:
        """How often the server has delivered this."""
        return self._attempt

    async def ack(self) -> None:
        """Never deliver this again to this group; returns when the server has confirmed it."""
        await self._subscription.confirm(self)

    async def term(self) -> None:
        """Like `ack`, but the server publishes an advisory that the message was given up."""
        await self._subscription.confirm(self, b"+TERM")

    async def nack(self, *, delay: float = 0.0) -> None:
        """Deliver this again, not before *delay* seconds."""
        await self._subscription.hand_back(self, delay)


def _wire(topic: str, headers: Mapping[str, str], body: bytes) -> WireMessage:
    plain = {
        name: value
        for name, value in headers.items()
        if not name.startswith("Nats-") and name != KEY_HEADER
    }
    key = headers.get("ce-partitionkey") or headers.get(KEY_HEADER)
    return WireMessage(topic, None if key is None else unquote(key), plain, body)
