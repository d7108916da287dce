"""Messages on their way to the broker, and what it has said of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from semel.errors import PublishError
from semel.transports.amqp_frames import Outgoing


class Chunk:
    """Messages that are written together, and have consecutive delivery tags."""

    __slots__ = ("done", "errors", "first", "left", "low", "messages", "settled", "size")

    def __init__(self, first: int, messages: Sequence[Outgoing], size: int) -> None:
        self.first = first
        self.messages = messages
        self.size = size
        self.left = len(messages)
        self.low = 0  # all before it are settled
        self.settled = bytearray(len(messages))
        self.errors: dict[int, PublishError] = {}
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(self, start: int, end: int, error: PublishError | None) -> None:
        """Take the broker's answer for the messages from *start* to before *end*."""
        for position in range(max(start, self.low), end):
            if not self.settled[position]:
                self.settled[position] = 1
                self.left -= 1
                if error is not None:
                    self.errors.setdefault(position, error)
        if start <= self.low < end:
            self.low = end
        if not self.left and not self.done.done():
            self.done.set_result(None)

    def results(self, missing: PublishError | None) -> list[PublishError | None]:
        """Return the outcomes; *missing* is for messages without an answer."""
        if not self.left and not self.errors:
            return [None] * len(self.messages)
        return [
            self.errors.get(position, None if settled else missing)
            for position, settled in enumerate(self.settled)
        ]
