"""Where one client is in a feed."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping

from semel.asgi.feed import Cursor, Feed, Gap, Item
from semel.envelope import MessageEnvelope

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
    """One client's place in a feed.

    What the feed does not keep any more is read again, unless that would be more than *replay*
    messages. What cannot be had is told, never silent.
    """

    def __init__(self, feed: Feed, *, replay: int) -> None:
        self.cursor: Cursor = {}  # always behind what was returned
        self._feed = feed
        self._replay = replay
        self._number = 0

    def begin(self) -> None:
        """Start with what comes next."""
        self.cursor = dict(self._feed.tip)
        self._number = self._feed.end

    def resume(self, text: str) -> bool:
        """Go back to the place that *text* names; False, and begin, if it names none."""
        known = parse_cursor(text)
        if known is None or not self._feed.tip.keys() <= known.keys():
            self.begin()
            return False
        self.cursor = {log: known[log] for log in self._feed.tip}
        self._number = -1
        return True

    async def take(self) -> AsyncGenerator[MessageEnvelope | None]:
        """Return what came since; None for a loss."""
        feed = self._feed
        while self._number < feed.end:
            if self._number < feed.first:
                async for message in self._catch_up():
                    yield message
                continue
            item = feed.items[self._number - feed.first]
            self._number += 1
            if isinstance(item, Gap):
                self.cursor[item.log] = item.next
                yield None
            elif (message := self._take(item)) is not None:
                yield message

    async def _catch_up(self) -> AsyncIterator[MessageEnvelope | None]:
        feed = self._feed
        if not await self._correct():
            yield None
        missing = sum(max(0, feed.base[log] - at) for log, at in self.cursor.items())
        if missing > self._replay:
            self.cursor = {log: max(at, feed.base[log]) for log, at in self.cursor.items()}
            yield None
        while behind := self._behind():
            found = await feed.read(*behind)
            if not found:
                self.cursor |= {log: feed.base[log] for log in behind[1]}
                yield None
            for item in found:
                if (message := self._take(item)) is not None:
                    yield message
        self._number = feed.first

    def _take(self, item: Item) -> MessageEnvelope | None:
        if item.position < self.cursor.get(item.log, 0):
            return None
        self.cursor[item.log] = item.position + 1
        return item.message

    def _behind(self) -> tuple[str, Cursor] | None:
        """Return a topic whose messages must be read again, and from where; None if none must."""
        base = self._feed.base
        for topic, logs in self._feed.logs.items():
            places = {log: self.cursor.get(log, base[log]) for log in logs}
            behind = {log: at for log, at in places.items() if at < base[log]}
            if behind:
                return topic, behind
        return None

    async def _correct(self) -> bool:
        """Move positions that do not exist to where they can be read; False if one had to be."""
        feed = self._feed
        if all(feed.base[log] <= at <= feed.tip[log] for log, at in self.cursor.items()):
            return True
        before = dict(self.cursor)
        for log, (first, end) in (await feed.bounds()).items():
            if log in before:
                self.cursor[log] = min(max(before[log], first), end)
        return before == self.cursor
