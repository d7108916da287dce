"""Publishing to RabbitMQ in batches: one write for many messages, and their confirms counted.

`aiormq` connects, logs in, sends heartbeats and opens the channel. What it does per message is too
slow for a relay, so frames are encoded and confirms are read here, on three attributes that
`aiormq.abc` declares but does not document: `supports_batches` looks for them, and without them
`open_channel` returns a channel that publishes message by message.
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, cast

from aiormq.abc import AbstractChannel, AbstractConnection, ChannelFrame
from pamqp import commands as spec
from pamqp.body import ContentBody
from pamqp.header import ContentHeader

from semel.errors import PublishError, PublishErrorKind, describe
from semel.transports.amqp_chunk import Chunk
from semel.transports.amqp_frames import Encoder, Outgoing, returned_id
from semel.transports.amqp_single import Results, SingleChannel, is_blocked
from semel.transports.rabbitmq_errors import TROUBLE, closed_by_broker, failure

_CHUNK = 500
_CHUNK_BYTES = 256 * 1024
_POLL_SECONDS = 0.5
_TOO_LARGE = re.compile(r"message size (\d+)\D+max size (\d+)")


def supports_batches(channel: AbstractChannel) -> bool:
    """Tell whether this aiormq lets frames be written and confirms be read."""
    return (
        isinstance(getattr(channel, "frames", None), asyncio.Queue)
        and isinstance(getattr(channel.connection, "write_queue", None), asyncio.Queue)
        and {"payload", "should_close", "drain_future"}
        <= set(getattr(ChannelFrame, "__dataclass_fields__", ()))
    )


class BatchChannel:
    """A confirming channel on which batches are written whole.

    At most *window* messages and *window_bytes* wait for confirms; a larger message goes alone.
    """

    def __init__(
        self,
        channel: AbstractChannel,
        *,
        window: int,
        window_bytes: int,
        confirm_seconds: float,
        unroutable: PublishErrorKind | None,
    ) -> None:
        self.too_large: int | None = None  # the broker's limit, once it has refused a message
        self.is_stuck = False  # no confirm came in time: the connection may be dead
        self._channel = channel
        self._connection = channel.connection
        self._window = window
        self._window_bytes = window_bytes
        self._confirm_seconds = confirm_seconds
        self._unroutable = unroutable
        frame_max = channel.connection.connection_tune.frame_max
        self._encoder = Encoder(channel.number, frame_max, mandatory=unroutable is not None)
        self._lock = asyncio.Lock()
        self._room = asyncio.Event()
        self._chunks: list[Chunk] = []  # not settled, by their first tag
        self._tag = 0
        self._in_flight = self._in_flight_bytes = 0
        self._progress = 0.0
        self._returned: spec.Basic.Return | None = None
        self._returned_bytes = 0
        self._return_tag = 0
        self._closed: PublishError | None = None
        channel.frames = cast("asyncio.Queue[Any]", _Tap(channel.frames, self))
        channel.closing.add_done_callback(self._on_closing)

    @property
    def is_open(self) -> bool:
        """Whether it can still publish."""
        return self._closed is None and not self._channel.is_closed

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits for a confirm."""
        return not self._chunks

    async def close(self) -> None:
        """Close the channel; what waits for a confirm stays unknown."""
        with suppress(*TROUBLE):
            await self._channel.close()

    async def publish(self, messages: Sequence[Outgoing]) -> Results:
        """Write *messages* in order and wait for the confirms; the result at i is for message i."""
        parts: list[Chunk | PublishError] = []
        position = 0
        while position < len(messages):
            try:
                async with self._lock:
                    chunk = await self._write(messages, position)
            except PublishError as error:
                parts += [error] * (len(messages) - position)
                break
            except ValueError as error:
                parts.append(failure("not encodable", describe(error)))
                position += 1
            else:
                parts.append(chunk)
                position += len(chunk.messages)
        results: Results = []
        for part in parts:
            if isinstance(part, PublishError):
                results.append(part)
            else:
                missing = await self._wait(part)
                results += part.results(missing)
        return results

    async def _write(self, messages: Sequence[Outgoing], start: int) -> Chunk:
        """Write the next chunk; raise if it is not written at all."""
        frames, size = self._encode(messages, start)
        await self._wait_for_room(len(frames), size)
        chunk = Chunk(self._tag + 1, messages[start : start + len(frames)], size)
        if not self._chunks:
            self._progress = asyncio.get_running_loop().time()
        self._chunks.append(chunk)
        self._tag += len(frames)
        self._in_flight += len(frames)
        self._in_flight_bytes += size
        try:
            await self._put(b"".join(frames))
        except BaseException:
            # It is not in the queue: the next chunk takes its tags, which the lock protects.
            self._tag -= len(frames)
            if chunk in self._chunks:
                self._chunks.remove(chunk)
                self._forget(chunk)
            raise
        return chunk

    def _encode(self, messages: Sequence[Outgoing], start: int) -> tuple[list[bytes], int]:
        frames: list[bytes] = []
        size = 0
        for position in range(start, min(start + _CHUNK, len(messages))):
            try:
                frame = self._encoder.encode(messages[position])
            except ValueError:
                if frames:
                    break  # the next chunk begins with it, and tells
                raise
            frames.append(frame)
            size += len(frame)
            if size >= _CHUNK_BYTES:
                break
        return frames, size

    async def _put(self, payload: bytes) -> None:
        frame = ChannelFrame(payload=payload, should_close=False, drain_future=None)
        queue = self._connection.write_queue
        while True:
            if self._closed is not None:
                raise failure("no connection", str(self._closed))
            with suppress(asyncio.QueueFull):
                queue.put_nowait(frame)
                return
            # Not `put`: nobody would wake it up when the connection dies.
            await asyncio.sleep(0.001)

    async def _wait_for_room(self, count: int, size: int) -> None:
        while True:
            if await is_blocked(self._connection):
                self._progress = asyncio.get_running_loop().time()
                raise failure("blocked")
            self._check_progress()
            if self._closed is not None:
                raise failure("no connection", str(self._closed))
            if not self._in_flight or (
                self._in_flight + count <= self._window
                and self._in_flight_bytes + size <= self._window_bytes
            ):
                return
            self._room.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_SECONDS):
                    await self._room.wait()

    async def _wait(self, chunk: Chunk) -> PublishError | None:
        """Wait for the confirms; return what is to be said of those that did not come."""
        while not chunk.done.done():
            await asyncio.wait({chunk.done}, timeout=_POLL_SECONDS)
            if chunk.done.done():
                break
            if self._closed is None and await is_blocked(self._connection):
                self._progress = asyncio.get_running_loop().time()
                return failure("blocked in flight")
            self._check_progress()
        return (self._closed or failure("not confirmed")) if chunk.left else None

    def _check_progress(self) -> None:
        silence = asyncio.get_running_loop().time() - self._progress
        if self._chunks and silence > self._confirm_seconds:
            self.is_stuck = True
            self._fail(failure("not confirmed", f"within {self._confirm_seconds:g} s"))

    def _forget(self, chunk: Chunk) -> None:
        self._in_flight -= len(chunk.messages)
        self._in_flight_bytes -= chunk.size
        self._room.set()

    # What the broker sends

    def on_frame(self, frame: object) -> bool:
        """Take a frame for this channel; False if it is aiormq's business."""
        if isinstance(frame, spec.Basic.Ack):
            self._on_confirm(frame.delivery_tag or 0, frame.multiple, None)
        elif isinstance(frame, spec.Basic.Nack):
            self._on_confirm(frame.delivery_tag or 0, frame.multiple, failure("nacked"))
        elif isinstance(frame, spec.Basic.Return):
            self._returned = frame
        elif isinstance(frame, ContentHeader) and self._returned is not None:
            self._returned_bytes = frame.body_size
            self._on_return(self._returned, frame)
        elif isinstance(frame, ContentBody) and self._returned_bytes > 0:
            self._returned_bytes -= len(frame.value)
        else:
            if isinstance(frame, spec.Channel.Close):
                self._on_close(frame.reply_code or 0, frame.reply_text or "")
            return False
        return True

    def _on_confirm(self, tag: int, multiple: bool, error: PublishError | None) -> None:
        self._progress = asyncio.get_running_loop().time()
        last = bisect_right(self._chunks, tag, key=lambda chunk: chunk.first)
        for index in range(0 if multiple else max(last - 1, 0), last):
            chunk = self._chunks[index]
            end = min(tag - chunk.first + 1, len(chunk.messages))
            chunk.settle(0 if multiple else end - 1, end, error)
        finished = 0
        while finished < len(self._chunks) and not self._chunks[finished].left:
            self._forget(self._chunks[finished])
            finished += 1
        del self._chunks[:finished]

    def _on_return(self, frame: spec.Basic.Return, header: ContentHeader) -> None:
        """Find the message: returns come in the order of publishing, each before its ack."""
        self._returned = None
        if self._unroutable is None:
            return
        wanted = (returned_id(header), frame.exchange, frame.routing_key)
        error = failure(
            "unroutable",
            f"exchange {frame.exchange!r}, routing key {frame.routing_key!r}",
            kind=self._unroutable,
        )
        for chunk in self._chunks:
            for position in range(max(0, self._return_tag + 1 - chunk.first), len(chunk.messages)):
                if chunk.messages[position].identity == wanted:
                    chunk.errors[position] = error
                    self._return_tag = chunk.first + position
                    return
        # Somebody's message has no queue, and its ack is about to come: trust none of them.
        self._fail(failure("channel closed", "a message came back that was not sent here"))

    def _on_close(self, code: int, text: str) -> None:
        refused = _TOO_LARGE.search(text) if code == 406 else None
        if refused:
            size, limit = int(refused[1]), int(refused[2])
            self.too_large = limit
            self._blame(size, failure("too large", f"{size} bytes, the broker's limit is {limit}"))
        self._fail(closed_by_broker(code, text))

    def _blame(self, size: int, error: PublishError) -> None:
        for chunk in self._chunks:
            for position, message in enumerate(chunk.messages):
                if not chunk.settled[position] and len(message.body) == size:
                    chunk.settle(position, position + 1, error)
                    return

    def _on_closing(self, closing: asyncio.Future[Any]) -> None:
        error = None if closing.cancelled() else closing.exception()
        self._fail(failure("connection lost", describe(error) if error else ""))

    def _fail(self, error: PublishError) -> None:
        """Give up: nothing that is not settled by now will be."""
        if self._closed is not None:
            return
        self._closed = error
        chunks, self._chunks = self._chunks, []
        for chunk in chunks:
            self._forget(chunk)
            if not chunk.done.done():
                chunk.done.set_result(None)


class _Tap:
    """Stands in for the queue of a channel's frames and keeps what belongs to the publisher."""

    def __init__(self, queue: asyncio.Queue[Any], publisher: BatchChannel) -> None:
        self._queue = queue
        self._publisher = publisher

    async def put(self, item: tuple[int, object]) -> None:
        if not self._publisher.on_frame(item[1]):
            await self._queue.put(item)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


async def open_channel(
    connection: AbstractConnection,
    *,
    window: int,
    window_bytes: int,
    confirm_seconds: float,
    unroutable: PublishErrorKind | None,
) -> BatchChannel | SingleChannel:
    """Open a channel for publishing; without *unroutable*, messages without a queue are dropped."""
    channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
    if not supports_batches(channel):
        return SingleChannel(channel, confirm_seconds=confirm_seconds, unroutable=unroutable)
    return BatchChannel(
        channel,
        window=window,
        window_bytes=window_bytes,
        confirm_seconds=confirm_seconds,
        unroutable=unroutable,
    )
