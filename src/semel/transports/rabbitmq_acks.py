"""Acks of one channel, many in one frame."""

from __future__ import annotations

import asyncio
import logging

from aiormq.abc import AbstractChannel

from semel.errors import describe
from semel.transports.rabbitmq_errors import TROUBLE, calling

_DELAY_SECONDS = 0.005
_logger = logging.getLogger("semel.transports.rabbitmq")


class Acks:
    """Sends acks together: a quarter of the prefetch at a time, or what a few milliseconds bring.

    Delivery tags count up from 1. As soon as all up to some tag are acked, one frame says so.
    """

    def __init__(self, channel: AbstractChannel, *, prefetch: int) -> None:
        self._channel = channel
        self._enough = max(1, prefetch // 4)
        self._new: set[int] = set()
        self._ahead: set[int] = set()  # acked one by one, while an older one is not
        self._through = 0
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def add(self, tag: int) -> None:
        """Ack *tag* soon."""
        self._new.add(tag)
        if len(self._new) >= self._enough:
            self._start()
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_DELAY_SECONDS, self._start)

    async def flush(self) -> None:
        """Return once everything that was added is on its way, or cannot be."""
        self._start()
        if self._task is not None:
            await self._task

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is None:
            self._task = asyncio.create_task(self._flush())

    async def _flush(self) -> None:
        try:
            while self._new:
                for tag, multiple in self.plan():
                    await calling(self._channel.basic_ack(tag, multiple=multiple, wait=False))
        except TROUBLE as error:
            _logger.warning("acks are lost, the messages come again: %s", describe(error))
        finally:
            self._task = None

    def plan(self) -> list[tuple[int, bool]]:
        """Return the frames to send, as tags and whether all before them are meant too."""
        new, self._new = self._new, set()
        last = 0
        while (tag := self._through + 1) in new or tag in self._ahead:
            self._through = tag
            self._ahead.discard(tag)
            if tag in new:
                last = tag  # a tag that was acked before must not be named again
                new.discard(tag)
        self._ahead |= new
        frames = [(tag, False) for tag in sorted(new)]
        return [(last, True), *frames] if last else frames
