"""The few words of ZooKeeper's protocol that a clean start after a kill needs."""

from __future__ import annotations

import socket
import struct
import time

from .base import ServiceError, receive

DELETE, CLOSE = 2, -11


def forget_dead_sessions(port: int, timeout: float = 30.0) -> None:
    """Wait for a server that has no clients yet, and drop what the clients before left behind.

    It would do so itself when their sessions run out; until then a new bookie of the same name
    is refused, and gives up.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            return _delete(port, _left_behind(port))
        except OSError as error:
            if time.monotonic() > deadline:
                raise ServiceError(f"ZooKeeper does not answer on port {port}: {error}") from error
            time.sleep(0.05)


def _left_behind(port: int) -> list[str]:
    """The ephemeral nodes, from an answer that has the path of each on an indented line."""
    with socket.create_connection(("127.0.0.1", port), 3) as link:
        link.sendall(b"dump")
        with link.makefile("r") as answer:
            text = answer.read()
    if "ephemeral" not in text.lower():
        raise OSError("it does not serve clients yet")
    return [line.strip() for line in text.splitlines() if line.startswith("\t/")]


def _delete(port: int, paths: list[str]) -> None:
    with socket.create_connection(("127.0.0.1", port), 5) as link:
        _send(link, struct.pack("!iqiqi16s?", 0, 0, 10_000, 0, 16, bytes(16), False))
        _answer(link)
        for number, path in enumerate(paths):
            name = path.encode()
            _send(link, struct.pack("!iii", number, DELETE, len(name)) + name + b"\xff\xff\xff\xff")
            _answer(link)
        _send(link, struct.pack("!ii", len(paths), CLOSE))
        _answer(link)


def _send(link: socket.socket, packet: bytes) -> None:
    link.sendall(struct.pack("!i", len(packet)) + packet)


def _answer(link: socket.socket) -> None:
    (size,) = struct.unpack("!i", receive(link, 4))
    receive(link, size)
