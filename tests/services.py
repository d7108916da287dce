"""The real servers behind the tests, and fresh databases on them.

A server is real when ``SEMEL_TEST_<NAME>_URL`` names it, as ``scripts/services env`` prints it.
A missing one skips its tests on a laptop and fails them when ``CI=true``.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import psycopg
import pymysql
import pytest
from sqlalchemy import URL, make_url

SERVICES = ("postgres", "mariadb", "redis", "nats", "rabbitmq", "kafka", "pulsar", "registry")
MISSING = "no server: "


@dataclass(frozen=True, slots=True)
class Backend:
    """A database and the driver that reaches it."""

    service: str | None
    driver: str


BACKENDS = {
    "sqlite": Backend(None, "sqlite+aiosqlite"),
    "postgres": Backend("postgres", "postgresql+asyncpg"),
    "postgres-psycopg": Backend("postgres", "postgresql+psycopg"),
    "mariadb": Backend("mariadb", "mysql+asyncmy"),
}


@dataclass(frozen=True, slots=True)
class Database:
    """An empty database that belongs to one test."""

    name: str
    url: str


def mark(backend: str) -> str:
    """The pytest mark of a backend: both PostgreSQL drivers share theirs."""
    return BACKENDS[backend].service or "sqlite"


def variable(service: str) -> str:
    return f"SEMEL_TEST_{service.upper()}_URL"


def service_url(service: str) -> str:
    """The URL of a real server; without one, the test that asks is skipped, or fails in CI."""
    assert service in SERVICES, f"no service {service!r}; there are {', '.join(SERVICES)}"
    return os.environ.get(variable(service)) or _missing(f"{MISSING}{service}", service)


def tool(name: str) -> str:
    """The path of a program that tests run; without it, they are skipped, or fail in CI."""
    return shutil.which(name) or _missing(f"no program: {name}", name)


def _missing(text: str, name: str) -> NoReturn:
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(f"{text}, see `scripts/services up {name}`", pytrace=False)
    pytest.skip(text)


@contextmanager
def fresh_database(backend: str, folder: Path) -> Iterator[Database]:
    """A new, empty database, which is gone afterwards whoever is still connected to it."""
    driver, service = BACKENDS[backend].driver, BACKENDS[backend].service
    if service is None:
        yield Database(backend, f"{driver}:///{folder / 'semel.db'}")
        return
    server = make_url(service_url(service))
    name = f"semel_{secrets.token_hex(6)}"
    make = {"postgres": _postgres_database, "mariadb": _mariadb_database}[service]
    with make(server, name):
        url = server.set(drivername=driver, database=name)
        yield Database(backend, url.render_as_string(hide_password=False))


@contextmanager
def _postgres_database(server: URL, name: str) -> Iterator[None]:
    with closing(_postgres(server)) as connection:
        # template0: nobody is ever connected to it, so creating never has to wait.
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template0")
    try:
        yield
    finally:
        with closing(_postgres(server)) as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@contextmanager
def _mariadb_database(server: URL, name: str) -> Iterator[None]:
    with closing(_mariadb(server)) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name}")
    try:
        yield
    finally:
        with closing(_mariadb(server)) as connection, connection.cursor() as cursor:
            # DROP would wait for the metadata locks of every transaction that is still open.
            cursor.execute("SELECT id FROM information_schema.processlist WHERE db = %s", (name,))
            for (lingering,) in cursor.fetchall():
                # It may have left in the meantime.
                with suppress(pymysql.err.OperationalError):
                    cursor.execute(f"KILL {lingering}")
            cursor.execute(f"DROP DATABASE IF EXISTS {name}")


def _postgres(server: URL) -> psycopg.Connection:
    plain = server.set(drivername="postgresql").render_as_string(hide_password=False)
    return psycopg.connect(plain, autocommit=True, connect_timeout=5)


def _mariadb(server: URL) -> pymysql.Connection[pymysql.cursors.Cursor]:
    return pymysql.connect(
        host=server.host or "127.0.0.1",
        port=server.port or 3306,
        user=server.username,
        password=server.password or "",
        autocommit=True,
        connect_timeout=5,
    )


def version(service: str) -> str:
    """The version that a database server reports; brokers do not tell it cheaply."""
    url = os.environ[variable(service)]
    match service:
        case "postgres":
            with closing(_postgres(make_url(url))) as connection:
                text = connection.info.parameter_status("server_version") or ""
        case "mariadb":
            with closing(_mariadb(make_url(url))) as client, client.cursor() as cursor:
                cursor.execute("SELECT version()")
                text = str((cursor.fetchone() or ("",))[0])
        case _:
            text = ""
    return text.split(" ")[0]


def shown_url(service: str) -> str:
    """The URL of a server without its password."""
    return re.sub(r"(//[^:/@]*):[^@]*@", r"\1:***@", os.environ[variable(service)])
