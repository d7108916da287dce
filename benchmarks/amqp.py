"""RabbitMQ's own limit: frames made beforehand, on a plain socket, confirmed by the broker."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import unquote, urlsplit

from pamqp import base, body, commands, frame, header

from semel.wire.message import WireMessage

WINDOW = 4000
_CHUNK = 500


def blast(url: str, wires: Sequence[WireMessage]) -> Callable[[], Awaitable[None]]:
    """Connect and encode; return what sends *wires* as semel does and waits for all confirmations.

    At most `WINDOW` of them are unconfirmed.
    """
    frames = [encode(wire) for wire in wires]
    chunks = [b"".join(frames[n : n + _CHUNK]) for n in range(0, len(frames), _CHUNK)]
    link = _Link(url)

    def send() -> None:
        sent = 0
        for chunk in chunks:
            link.socket.sendall(chunk)
            sent += min(_CHUNK, len(frames) - sent)
            while sent - link.confirmed > WINDOW - _CHUNK:
                link.expect(None)
        while link.confirmed < len(frames):
            link.expect(None)
        link.socket.close()

    return partial(asyncio.to_thread, send)


def encode(wire: WireMessage) -> bytes:
    """Return the frames of a message on channel 1, as semel writes them."""
    headers = dict(wire.headers)
    properties = commands.Basic.Properties(
        content_type=headers.pop("content-type"),
        message_id=headers.pop("message_id"),
        timestamp=datetime.fromisoformat(headers["cloudEvents_time"]),
        delivery_mode=2,
        headers=headers,
    )
    route = {"exchange": wire.topic, "routing_key": headers["cloudEvents_type"]}
    return b"".join(
        frame.marshal(part, 1)
        for part in (
            commands.Basic.Publish(**route, mandatory=True),
            header.ContentHeader(body_size=len(wire.body), properties=properties),
            body.ContentBody(wire.body),
        )
    )


class _Link:
    """One channel with confirms on a socket."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self.socket = socket.create_connection((address.hostname, address.port or 5672), 30)
        self.confirmed = 0
        self._buffer = b""
        self._floor = 0
        self._early: set[int] = set()
        self.socket.sendall(frame.marshal(header.ProtocolHeader(0, 9, 1), 0))
        self._await(commands.Connection.Start)
        login = f"\0{unquote(address.username or 'guest')}\0{unquote(address.password or 'guest')}"
        self._say(0, commands.Connection.StartOk({}, "PLAIN", login, "en_US"))
        tune = self._await(commands.Connection.Tune)
        self._say(0, commands.Connection.TuneOk(tune.channel_max, tune.frame_max, 0))
        host = unquote(address.path.removeprefix("/")) or "/"
        self._ask(0, commands.Connection.Open(host), commands.Connection.OpenOk)
        self._ask(1, commands.Channel.Open(), commands.Channel.OpenOk)
        self._ask(1, commands.Confirm.Select(), commands.Confirm.SelectOk)

    def expect(self, kind: type[Any] | None) -> Any:
        """Take what has come: confirmations, and nothing else but a frame of *kind*."""
        value = self._receive()
        assert value is None or (kind is not None and isinstance(value, kind)), value
        return value

    def _receive(self) -> Any:
        data = self.socket.recv(65536)
        assert data, "RabbitMQ closed the connection"
        self._buffer += data
        other = None
        at = 0
        while len(self._buffer) - at >= 8:
            size = int.from_bytes(self._buffer[at + 3 : at + 7], "big") + 8
            if len(self._buffer) - at < size:
                break
            value = self._take(self._buffer[at : at + size])
            other = other if value is None else value
            at += size
        self._buffer = self._buffer[at:]
        return other

    def _take(self, data: bytes) -> Any:
        _, _, value = frame.unmarshal(data)
        if isinstance(value, commands.Basic.Ack):
            self._note(value.delivery_tag, multiple=value.multiple)
            return None
        assert not isinstance(value, commands.Basic.Nack | commands.Basic.Return), value.name
        return value

    def _note(self, tag: int, *, multiple: bool) -> None:
        """Confirmations of single messages may come out of turn."""
        if multiple:
            new = range(self._floor + 1, tag + 1)
            self.confirmed += len(new) - len(self._early.intersection(new))
            self._early.difference_update(new)
            self._floor = max(self._floor, tag)
        else:
            self.confirmed += 1
            self._early.add(tag)
            while self._floor + 1 in self._early:
                self._floor += 1
                self._early.discard(self._floor)

    def _ask(self, channel: int, question: base.Frame, answer: type[Any]) -> Any:
        self._say(channel, question)
        return self._await(answer)

    def _say(self, channel: int, value: base.Frame) -> None:
        self.socket.sendall(frame.marshal(value, channel))

    def _await(self, kind: type[Any]) -> Any:
        while (value := self.expect(kind)) is None:
            pass
        return value
