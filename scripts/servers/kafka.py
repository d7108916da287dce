"""Apache Kafka, one node that is broker and KRaft controller."""

from __future__ import annotations

import base64
import shutil
import struct
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar
from urllib.parse import SplitResult

from . import maven
from .base import NotReadyError, Server, connect, receive

# The newest that runs on Java 17, and the logger that its start scripts bring.
ARTIFACTS = (
    "org.apache.kafka:kafka_2.13:4.1.1",
    "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3",
)
# A broker that was killed may not register again before its session has run out.
PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{main},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{main}
controller.listener.names=CONTROLLER
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
log.dirs={data}
auto.create.topics.enable=false
num.partitions=4
offsets.topic.num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
log.cleaner.dedupe.buffer.size=16777216
"""
LOGGING = """\
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d{HH:mm:ss.SSS} %-5p %c{1} %m%n
rootLogger.level=WARN
rootLogger.appenderRef.console.ref=console
logger.kafka.name=kafka.server
logger.kafka.level=INFO
"""


class Kafka(Server):
    name = "kafka"
    ports: ClassVar = {"main": 21092, "controller": 21093}
    packages = maven.PACKAGES
    scheme = "kafka"
    start_timeout = 120.0

    def installed(self) -> bool:
        return maven.installed()

    @property
    def _settings(self) -> Path:
        return self.folder / "server.properties"

    def _java(self, *options: str) -> list[str]:
        return [
            *("java", *options, f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}"),
            *("-cp", maven.class_path("kafka", ARTIFACTS)),
        ]

    def initialise(self) -> None:
        data = self.folder / "data"
        self._settings.write_text(PROPERTIES.format(**self.state.ports, data=data))
        (self.folder / "log4j2.properties").write_text(LOGGING)
        if (data / "meta.properties").exists():
            return
        shutil.rmtree(data, ignore_errors=True)
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self.run(
            *(*self._java("-XX:TieredStopAtLevel=1"), "kafka.tools.StorageTool", "format"),
            *(f"--cluster-id={cluster}", f"--config={self._settings}"),
        )

    def command(self) -> Sequence[str | Path]:
        return [*self._java("-Xms256m", "-Xmx512m"), "kafka.Kafka", self._settings]

    def ping(self, url: SplitResult) -> None:
        """Ask for the metadata of the cluster; a broker is in it once it may serve clients."""
        request = struct.pack("!hhih5si", 3, 1, 1, 5, b"semel", 0)
        with connect(url) as link:
            link.sendall(struct.pack("!i", len(request)) + request)
            (size,) = struct.unpack("!i", receive(link, 4))
            _, brokers = struct.unpack("!ii", receive(link, size)[:8])
        if brokers == 0:
            raise NotReadyError("no broker serves clients yet")
