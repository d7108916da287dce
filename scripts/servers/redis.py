"""Redis with an append-only file, so that streams outlive a kill."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar
from urllib.parse import SplitResult, unquote

from .base import NotReadyError, Server, connect, find


class Redis(Server):
    name = "redis"
    ports: ClassVar = {"main": 21379}
    packages = ("redis-server",)
    scheme = "redis"
    user = "redis"

    def installed(self) -> bool:
        return find("redis-server") is not None

    def initialise(self) -> None:
        self.own(self.folder / "data")

    def command(self) -> Sequence[str | Path]:
        return [
            *(find("redis-server") or "", "--port", str(self.port()), "--bind", "127.0.0.1"),
            *("--dir", self.folder / "data", "--appendonly", "yes", "--save", ""),
        ]

    def address(self, port: int) -> str:
        return f"redis://127.0.0.1:{port}/0"

    def ping(self, url: SplitResult) -> None:
        user, password = unquote(url.username or ""), unquote(url.password or "")
        with connect(url) as link, link.makefile("rb") as answers:
            if password:
                link.sendall(_request("AUTH", *filter(None, (user, password))))
                answers.readline()
            link.sendall(_request("PING"))
            if (answer := answers.readline()) != b"+PONG\r\n":
                raise NotReadyError(answer.decode(errors="replace").strip())


def _request(*words: str) -> bytes:
    parts = (f"${len(word.encode())}\r\n{word}\r\n" for word in words)
    return f"*{len(words)}\r\n{''.join(parts)}".encode()
