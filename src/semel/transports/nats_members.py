"""Who is in a group, by word of mouth."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as Interest

HELLO_SECONDS = 1.0
_GONE_SECONDS = 3.5
_LISTEN_SECONDS = 0.1


class Members:
    """The members that say hello every second, this one among them.

    Nothing rests on it but fairness: whoever hears nobody takes himself for the only member.
    """

    def __init__(
        self, client: Client, subject: str, own_id: str, on_change: Callable[[], None]
    ) -> None:
        self._client = client
        self._subject = subject
        self._id = own_id
        self._on_change = on_change
        self._heard: dict[str, float] = {}
        self._greeted = 0.0
        self._interest: Interest | None = None

    async def join(self) -> None:
        """Say hello, and listen for a moment to who answers."""
        self._interest = await self._client.subscribe(self._subject, cb=self._hear)
        await self._say("join")
        await asyncio.sleep(_LISTEN_SECONDS)

    async def leave(self) -> None:
        """Say goodbye."""
        if self._interest is not None:
            interest, self._interest = self._interest, None
            await self._say("leave")
            await interest.unsubscribe()

    async def greet(self) -> None:
        """Say hello if it is time to."""
        if self._now() >= self._greeted + HELLO_SECONDS:
            await self._say("hello")

    def present(self) -> list[str]:
        """Return the ids of all members, in an order that all agree on."""
        latest = self._now() - _GONE_SECONDS
        self._heard = {name: at for name, at in self._heard.items() if at >= latest}
        return sorted({*self._heard, self._id})

    async def _hear(self, message: Msg) -> None:
        word, _, name = message.data.decode("ascii", "replace").partition(" ")
        if name == self._id or self._interest is None:
            return
        known = self._heard.pop(name, None)
        if word != "leave":
            self._heard[name] = self._now()
        if word == "join":
            await self._say("hello")
        if (known is None) == (word != "leave"):
            self._on_change()

    async def _say(self, word: str) -> None:
        self._greeted = self._now()
        try:
            await self._client.publish(self._subject, f"{word} {self._id}".encode())
        except nats.errors.ConnectionClosedError:
            self._heard.clear()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
