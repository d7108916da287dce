"""Apicurio Registry, in memory, through the API that Confluent's clients speak."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar
from urllib.parse import SplitResult

from . import maven
from .base import NotReadyError, Server, connect

# The last that runs on Java 11 and 17 without Kubernetes around it.
ARTIFACT = "io.apicurio:apicurio-registry-app:2.6.13.Final:tar.gz:all"
API = "/apis/ccompat/v7"


class Registry(Server):
    name = "registry"
    ports: ClassVar = {"main": 21081}
    packages = maven.PACKAGES
    scheme = "http"
    start_timeout = 120.0

    def installed(self) -> bool:
        return maven.installed()

    def initialise(self) -> None:
        """Nothing to do: it keeps nothing."""

    def command(self) -> Sequence[str | Path]:
        (runner,) = maven.unpacked("registry", ARTIFACT).glob("*-runner.jar")
        return [
            *("java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-Dquarkus.http.host=127.0.0.1"),
            *(f"-Dquarkus.http.port={self.port()}", "-jar", runner),
        ]

    def address(self, port: int) -> str:
        return f"http://127.0.0.1:{port}{API}"

    def ping(self, url: SplitResult) -> None:
        """Ask which subjects there are."""
        request = f"GET {url.path}/subjects HTTP/1.0\r\nHost: {url.netloc}\r\n\r\n"
        with connect(url) as link, link.makefile("rb") as answer:
            link.sendall(request.encode())
            status = answer.readline().split()
        if status[1:2] != [b"200"]:
            raise NotReadyError("it does not answer as a registry")
