"""Apache Pulsar in standalone mode, with a ZooKeeper beside it.

Not with RocksDB, the default: when it opens after a kill it drops the registration of the old
bookie at some later time, and with it that of the new one. Not with the ZooKeeper that standalone
mode has inside: that one listens on all interfaces.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar
from urllib.parse import SplitResult

from . import maven, zookeeper
from .base import NotReadyError, Server, connect, receive

# The long-term release; it runs on Java 17. The parent brings the versions it was tested with.
ARTIFACTS = ("org.apache.pulsar:pulsar-broker:4.0.7",)
PLATFORM = "org.apache.pulsar:pulsar:4.0.7"
# The lower part is the bookie's: without allowEphemeralPorts it takes a random port.
SETTINGS = """\
clusterName=standalone
bindAddress=127.0.0.1
advertisedAddress=127.0.0.1
brokerServicePort={main}
webServicePort={web}
managedLedgerDefaultEnsembleSize=1
managedLedgerDefaultWriteQuorum=1
managedLedgerDefaultAckQuorum=1
brokerDeleteInactiveTopicsEnabled=false
loadBalancerEnabled=false

listeningInterface=lo
allowLoopback=true
allowEphemeralPorts=true
journalWriteData=true
diskUsageThreshold=0.99
diskUsageWarnThreshold=0.98
"""
ZOOKEEPER = """\
dataDir={data}
clientPortAddress=127.0.0.1
clientPort={zookeeper}
admin.enableServer=false
4lw.commands.whitelist=dump
autopurge.purgeInterval=1
"""
LOGGING = """\
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d{HH:mm:ss.SSS} %-5p %c{1} %m%n
rootLogger.level=WARN
rootLogger.appenderRef.console.ref=console
logger.pulsar.name=org.apache.pulsar.broker.PulsarService
logger.pulsar.level=INFO
"""
# What Netty, BookKeeper and Pulsar reach into, as in Pulsar's own start script.
OPENED = (
    "java.base/java.io",
    "java.base/java.nio",
    "java.base/java.util.zip",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.platform",
    "java.base/sun.net",
    "java.management/sun.management",
    "jdk.management/com.sun.management.internal",
)


class Pulsar(Server):
    name = "pulsar"
    ports: ClassVar = {"main": 21650, "web": 21080, "bookie": 21181, "zookeeper": 21182}
    packages = maven.PACKAGES
    scheme = "pulsar"
    start_timeout = 180.0

    def installed(self) -> bool:
        return maven.installed()

    def _java(self, *options: str) -> list[str]:
        return [
            *("java", *options, "-Djava.net.preferIPv4Stack=true"),
            f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}",
            *("-cp", maven.class_path("pulsar", ARTIFACTS, PLATFORM)),
        ]

    def initialise(self) -> None:
        settings = self.folder / "zookeeper.conf"
        settings.write_text(
            ZOOKEEPER.format(**self.state.ports, data=self.folder / "data" / "zookeeper")
        )
        (self.folder / "standalone.conf").write_text(SETTINGS.format(**self.state.ports))
        (self.folder / "log4j2.properties").write_text(LOGGING)
        java = self._java("-Xmx128m", "-XX:+UseSerialGC", "-Dzookeeper.preAllocSize=1024")
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        self.start_helper([*java, main, settings], "zookeeper.log")
        zookeeper.forget_dead_sessions(self.port("zookeeper"))

    def command(self) -> Sequence[str | Path]:
        return [
            *self._java(
                *("-Xms256m", "-Xmx1g", "-XX:MaxDirectMemorySize=512m"),
                *(f"--add-opens={package}=ALL-UNNAMED" for package in OPENED),
                "-Dio.netty.tryReflectionSetAccessible=true",
            ),
            "org.apache.pulsar.PulsarStandaloneStarter",
            *("--config", self.folder / "standalone.conf"),
            *("--no-functions-worker", "--no-stream-storage"),
            *("--advertised-address", "127.0.0.1"),
            *("--metadata-url", f"zk:127.0.0.1:{self.port('zookeeper')}"),
            *("--bookkeeper-port", str(self.port("bookie"))),
            *("--bookkeeper-dir", self.folder / "data" / "bookkeeper"),
            # If this folder existed, standalone mode would start its own ZooKeeper.
            *("--zookeeper-dir", self.folder / "unused"),
        ]

    def ping(self, url: SplitResult) -> None:
        """Connect, look a topic up, and announce messages for it, which the bookie must allow."""
        topic = b"persistent://public/default/semel-ping"
        with connect(url) as link:
            _ask(link, 2, _field(1, b"semel") + _field(4, 15), answer=3)
            found = _ask(link, 23, _field(1, topic) + _field(2, 1), answer=24)
            if found.get(3) != 1:
                raise NotReadyError("the broker does not serve public/default yet")
            if self.variable() not in os.environ:
                _ask(link, 5, _field(1, topic) + _field(2, 1) + _field(3, 2), answer=17)


def _ask(link: socket.socket, kind: int, body: bytes, *, answer: int) -> dict[int, int | bytes]:
    """Send a command of Pulsar's protocol; in it the body has the number of its kind."""
    command = _field(1, kind) + _field(kind, body)
    link.sendall(struct.pack("!II", len(command) + 4, len(command)) + command)
    (size,) = struct.unpack("!I", receive(link, 4))
    fields = _fields(receive(link, size)[4:])
    content = fields.get(answer)
    if not isinstance(content, bytes):
        raise NotReadyError(f"answer {fields.get(1)!r} to command {kind}")
    return _fields(content)


def _field(number: int, value: int | bytes) -> bytes:
    """A field of a protocol buffer: a number, or bytes."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    more = bytearray()
    while value > 0x7F:
        more.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*more, value])


def _fields(data: bytes) -> dict[int, int | bytes]:
    found: dict[int, int | bytes] = {}
    rest = memoryview(data)

    def number() -> int:
        nonlocal rest
        value = shift = 0
        while True:
            byte, rest = rest[0], rest[1:]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while rest:
        key = number()
        if key & 7 == 0:
            found[key >> 3] = number()
        elif key & 7 == 2:
            size = number()
            found[key >> 3], rest = bytes(rest[:size]), rest[size:]
        else:
            raise NotReadyError(f"unknown wire type {key & 7}")
    return found
