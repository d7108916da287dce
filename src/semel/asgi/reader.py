"""Where one client is in a feed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Collection, Coroutine, Iterator, Mapping
from typing import Any, TypeVar

from semel.asgi.feed import Cursor, Feed, Gap, Item
from semel.envelope import MessageEnvelope

T = TypeVar("T")

_MAX_CURSOR = 8192
_PLACE = re.compile(r"([0-9]{1,18}):([0-9]{1,18})\Z", re.ASCII)


def format_cursor(cursor: Mapping[int, int]) -> str:
    """Return *cursor* as text."""
    return ",".join(f"{log}:{position}" for log, position in sorted(cursor.items()))


def parse_cursor(text: str) -> Cursor | None:
    """Return what `format_cursor` was given; None for any other text."""
    places = [_PLACE.match(part) for part in text[: _MAX_CURSOR + 1].split(",")]
    if len(text) > _MAX_CURSOR or not all(places):
        return None
    return {int(place[1]): int(place[2]) for place in places if place is not None}


class Reader:
    """One client's place in a feed. Falling behind what the feed keeps is told, never silent."""

    def __init__(self, feed: Feed, *, replay: int) -> None:
        self.cursor: Cursor = {}
        self._feed = feed
        self._replay = replay
        self._number = 0

    def begin(self) -> None:
        """Start with what comes next."""
        self.cursor = dict(self._feed.tip)
        self._number = self._feed.end

    async def resume(self, text: str) -> AsyncIterator[MessageEnvelope | None]:
        """Go back to the place that *text* names and return what came since; None for a loss."""
        feed, known = self._feed, parse_cursor(text)
        if known is None or not feed.tip.keys() <= known.keys():
            self.begin()
            yield None
            return
        self.cursor = {log: known[log] for log in feed.tip}
        if not await self._correct():
            yield None
        missing = sum(max(0, feed.base[log] - at) for log, at in self.cursor.items())
        if missing > self._replay:
            self._skip()
            yield None
        for topic, logs in feed.logs.items():
            while behind := self._behind(logs):
                found = await _whole(feed.read(topic, behind))
                if not found:
                    self.cursor |= {log: feed.base[log] for log in behind}
                    yield None
                for item in found:
                    if (message := self._take(item)) is not None:
                        yield message
        self._number = feed.first

    def take(self) -> Iterator[MessageEnvelope | None]:
        """Return what came since; None for a loss. `cursor` is always behind what was returned."""
        feed = self._feed
        if self._number < feed.first:
            self._skip()
            yield None
        while self._number < feed.end:
            item = feed.items[self._number - feed.first]
            self._number += 1
            if isinstance(item, Gap):
                self.cursor[item.log] = item.next
                yield None
            elif (message := self._take(item)) is not None:
                yield message

    def _take(self, item: Item) -> MessageEnvelope | None:
        if item.position < self.cursor.get(item.log, 0):
            return None
        self.cursor[item.log] = item.position + 1
        return item.message

    def _behind(self, logs: Collection[int]) -> Cursor:
        base = self._feed.base
        return {log: self.cursor[log] for log in logs if self.cursor[log] < base[log]}

    def _skip(self) -> None:
        base = self._feed.base
        self.cursor = {log: max(at, base.get(log, at)) for log, at in self.cursor.items()}
        self._number = self._feed.first

    async def _correct(self) -> bool:
        """Move positions that do not exist to where they can be read; False if one had to be."""
        feed = self._feed
        if all(feed.base[log] <= at <= feed.tip[log] for log, at in self.cursor.items()):
            return True
        before = dict(self.cursor)
        for log, (first, end) in (await _whole(feed.bounds())).items():
            if log in before:
                self.cursor[log] = min(max(before[log], first), end)
        return before == self.cursor


async def _whole(work: Coroutine[Any, Any, T]) -> T:
    # A client that leaves must not cut a statement off: its connection would be thrown away.
    return await asyncio.shield(asyncio.ensure_future(work))
