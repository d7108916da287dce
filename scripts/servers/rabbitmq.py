"""RabbitMQ as a node of its own, with an epmd of its own, both on loopback only.

Debian's RabbitMQ 3.10 writes down that a quorum queue exists half a second after the last one was
declared: when it is killed before, the queue comes back without a leader and without content.
"""

from __future__ import annotations

import shutil
import socket
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar
from urllib.parse import SplitResult, unquote

from .base import NotReadyError, Server, ServiceError, connect, find, receive

PROGRAMS = Path("/usr/lib/rabbitmq/bin")


class RabbitMQ(Server):
    name = "rabbitmq"
    ports: ClassVar = {"main": 21672, "distribution": 21671, "epmd": 21369}
    packages = ("rabbitmq-server",)
    scheme = "amqp"
    user = "rabbitmq"
    start_timeout = 120.0

    @staticmethod
    def _program() -> Path | None:
        """Not the wrapper on the PATH: it starts another shell as another user."""
        inner = PROGRAMS / "rabbitmq-server"
        found = inner if inner.exists() else shutil.which("rabbitmq-server")
        return Path(found) if found else None

    def installed(self) -> bool:
        return self._program() is not None and find("epmd") is not None

    def initialise(self) -> None:
        self.own(self.folder / "data")
        (self.folder / "plugins").write_text("[].\n")
        (self.folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port()}\n"
            "default_user = semel\n"
            "default_pass = semel\n"
            "log.console.level = info\n"
        )
        self.start_helper(
            [find("epmd") or "", "-port", str(self.port("epmd")), "-address", "127.0.0.1"],
            "epmd.log",
        )

    def command(self) -> Sequence[str | Path]:
        return [self._program() or ""]

    def environment(self) -> Mapping[str, str]:
        return {
            "HOME": str(self.folder),
            "ERL_EPMD_PORT": str(self.port("epmd")),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": "semel@localhost",
            "RABBITMQ_DIST_PORT": str(self.port("distribution")),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PID_FILE": str(self.folder / "data" / "pid"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.folder / "advanced.config"),
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "rabbitmq-env.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            # The start script becomes the server then, so the pid that we know is the server's.
            "RUNNING_UNDER_SYSTEMD": "true",
        }

    def kill(self) -> None:
        """Kill the node once it has written down which queues it has."""
        if self.running():
            with suppress(ServiceError):  # one that does not answer is killed as it is
                control = [PROGRAMS / "rabbitmqctl", "--quiet", "--timeout", "10", "eval"]
                self.run(*control, "[dets:sync(Table) || Table <- dets:all()].")
        super().kill()

    def address(self, port: int) -> str:
        return f"amqp://semel:semel@127.0.0.1:{port}"

    def ping(self, url: SplitResult) -> None:
        """Log in and open the virtual host."""
        user, password = unquote(url.username or "guest"), unquote(url.password or "guest")
        vhost = unquote(url.path[1:]) or "/"
        login = f"\0{user}\0{password}".encode()
        with connect(url) as link:
            link.sendall(b"AMQP\0\0\x09\x01")
            _expect(link, 10)
            link.sendall(
                _method(11, struct.pack("!I6sI", 0, b"\x05PLAIN", len(login)) + login + b"\5en_US")
            )
            tune = _expect(link, 30)
            link.sendall(_method(31, tune))
            name = vhost.encode()
            link.sendall(_method(40, struct.pack("!B", len(name)) + name + b"\0\0"))
            _expect(link, 41)
            link.sendall(_method(50, struct.pack("!HBHH", 200, 0, 0, 0)))
            _expect(link, 51)


def _method(number: int, arguments: bytes) -> bytes:
    """A frame of AMQP 0-9-1 with a method of the class `connection`."""
    payload = struct.pack("!HH", 10, number) + arguments
    return struct.pack("!BHI", 1, 0, len(payload)) + payload + b"\xce"


def _expect(link: socket.socket, number: int) -> bytes:
    """The arguments of the next method, which must be that one."""
    kind, _, size = struct.unpack("!BHI", receive(link, 7))
    payload = receive(link, size + 1)[:-1]
    if kind != 1 or struct.unpack("!HH", payload[:4]) != (10, number):
        raise NotReadyError("the server does not accept the connection")
    return payload[4:]
