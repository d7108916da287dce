"""A canary in the address, in headers and in payloads appears nowhere that it was not asked for."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url, text

from semel import Hub, InMemoryMessageBus, OutboxProjectorConfig, PublishError, SqlAlchemyStorage
from semel.inbox import ConsumerInbox
from tests.cli.conftest import Cli
from tests.services import Database

CANARY = "CANARY-7f3a"
pytestmark = pytest.mark.parametrize("database", ["postgres"], indirect=True)


class Refusing(InMemoryMessageBus):
    """A broker whose errors repeat what they were given, as some do."""

    async def publish_many(self, messages):
        told = f"refused password={CANARY} at amqp://u:{CANARY}@broker/"
        return [PublishError(told, kind="permanent") for _ in messages]


@pytest.fixture
def guarded(database: Database, tmp_path: Path):
    """A role of the test's own, whose password is the canary."""
    url = make_url(database.url)
    role = f"canary_{secrets.token_hex(4)}"
    plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {role} SUPERUSER LOGIN PASSWORD '{CANARY}'")
    address = url.set(username=role, password=CANARY).render_as_string(hide_password=False)
    cli = Cli(address, tmp_path)
    try:
        cli.do(lambda storage: storage.initialize())
        yield cli
    finally:
        with psycopg.connect(plain, autocommit=True) as admin:
            admin.execute(f"REASSIGN OWNED BY {role} TO CURRENT_USER")
            admin.execute(f"DROP OWNED BY {role}")
            admin.execute(f"DROP ROLE {role}")


async def trouble(storage: SqlAlchemyStorage) -> str:
    """An event that the broker refuses, and a message whose handler fails."""
    hub = Hub(
        "shop", storage=storage, bus=Refusing(), config=OutboxProjectorConfig(max_retry_attempts=1)
    )
    async with hub.running():
        async with hub.unit_of_work() as uow:
            record = await uow.outbox.add(
                "orders", {"card": CANARY}, key="k", metadata={"authorization": CANARY}
            )
            await uow.commit()
        async with asyncio.timeout(60):
            while (await storage.outbox.get(record.id)).status != "DEAD":
                hub.projector.wake()
                await asyncio.sleep(0.05)

    def fail(payload: object) -> None:
        raise ValueError(f"token={CANARY}")

    inbox = ConsumerInbox(storage, consumer_name="billing")
    with suppress(ValueError):
        await inbox.process_idempotent("m-1", "orders", "OrderPlaced", {"card": CANARY}, fail)
    await inbox.process_idempotent("m-2", "orders", "OrderPlaced", {"card": CANARY}, lambda _: None)
    return record.id


async def stored(storage: SqlAlchemyStorage) -> str:
    """What semel wrote itself: errors, dead letters, reasons, audit."""
    async with storage.engine.connect() as connection:
        found = []
        for query in (
            "SELECT error_message, dead_letter::text FROM outbox",
            "SELECT reason, payload_hash, extra_data::text FROM inbox",
            "SELECT target, detail::text FROM audit",
            "SELECT detail::text FROM outbox_instance",
            "SELECT value::text FROM outbox_control",
        ):
            found += [*(await connection.execute(text(query))).all()]
        return repr(found)


def test_no_command_shows_a_secret(guarded: Cli) -> None:
    """Not on stdout, not on stderr, not with -v, not after an error; nor is one stored."""
    dead = guarded.do(trouble)
    commands = [
        ("status",),
        ("consumers",),
        ("outbox", "list"),
        ("outbox", "show", dead),
        ("outbox", "why", dead),
        ("outbox", "export"),
        ("outbox", "requeue", dead, "--dry-run"),
        ("outbox", "skip", "--all", "--yes"),
        ("outbox", "requeue", "--all", "--yes"),
        ("outbox", "replay", "--topic", "orders", "--yes"),
        ("outbox", "drop", "--all", "--yes"),
        ("inbox", "list"),
        ("inbox", "show", "m-2", "--consumer", "billing"),
        ("inbox", "stats"),
        ("idempotency", "list"),
        ("pause", "--topic", "orders"),
        ("resume", "--topic", "orders"),
        ("lease", "list"),
        ("cleanup", "--yes"),
        ("db", "check"),
        ("doctor",),
        ("status", "--hub", "nope:hub"),
        ("relay", "--bus", f"amqp://u:{CANARY}@h"),
    ]
    for command in commands:
        for options in ((), ("--json",)):
            done = guarded("-v", *command, *options)
            assert done.exit_code in (0, 1, 2), (command, done.output)
            assert CANARY not in done.output, command
    assert CANARY in guarded("outbox", "show", dead, "--payload").stdout
    assert CANARY not in guarded.do(stored)


def test_no_error_of_the_connection_shows_a_secret(guarded: Cli) -> None:
    """Whatever the driver says: wrong port, wrong database, wrong password."""
    url = make_url(guarded.url)
    for driver in ("asyncpg", "psycopg"):
        for wrong in (
            url.set(port=1),
            url.set(database=f"missing_{CANARY}"),
            url.set(password=f"{CANARY}-wrong", username="nobody"),
        ):
            address = wrong.set(drivername=f"postgresql+{driver}")
            broken = Cli(address.render_as_string(hide_password=False), guarded.folder)
            process = broken.run("-v", "status")
            assert 3 == process.returncode, process.stderr
            shown = (process.stdout + process.stderr).replace(f"missing_{CANARY}", "")
            assert CANARY not in shown
