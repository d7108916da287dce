"""NATS with JetStream on files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar
from urllib.parse import SplitResult, unquote

from .base import NotReadyError, Server, connect, find


class Nats(Server):
    name = "nats"
    ports: ClassVar = {"main": 21222}
    packages = ("nats-server",)
    scheme = "nats"
    user = "nats"

    def installed(self) -> bool:
        return find("nats-server") is not None

    def initialise(self) -> None:
        self.own(self.folder / "data")

    def command(self) -> Sequence[str | Path]:
        return [
            *(find("nats-server") or "", "--jetstream", "--store_dir", self.folder / "data"),
            *("--addr", "127.0.0.1", "--port", str(self.port())),
        ]

    def ping(self, url: SplitResult) -> None:
        """Ask JetStream about the account, as a client would before it makes a stream."""
        login = {"user": unquote(url.username or ""), "pass": unquote(url.password or "")}
        options = {"verbose": False, **(login if url.username else {})}
        with connect(url) as link, link.makefile("rb") as answers:
            answers.readline()
            link.sendall(
                f"CONNECT {json.dumps(options)}\r\n"
                "SUB _INBOX.semel 1\r\nPUB $JS.API.INFO _INBOX.semel 0\r\n\r\nPING\r\n".encode()
            )
            while not (answer := answers.readline()).startswith(b"MSG"):
                if not answer or answer.startswith(b"-ERR"):
                    raise NotReadyError(answer.decode(errors="replace").strip())
            if "error" in (body := json.loads(answers.readline())):
                raise NotReadyError(body["error"].get("description"))
