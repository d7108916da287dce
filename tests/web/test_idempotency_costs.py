"""What a key costs beside the business transaction: counted at the driver and at the server."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import event, text

from semel import SqlAlchemyStorage
from tests.services import Database
from tests.web.bank import Bank

# A claim on MySQL and MariaDB has its own COMMIT, and the pool rolls back what is returned to it.
ROUND_TRIPS = {"postgres-psycopg": 2, "mariadb": 4}


@contextmanager
def statements(bank: Bank) -> Iterator[list[str]]:
    """Collect the statements on the table of keys, by their first words."""
    sent: list[str] = []

    def note(_connection: Any, _cursor: Any, sql: str, *_: Any) -> None:
        if "idempotency" in sql:
            sent.append(sql.split(maxsplit=1)[0])

    event.listen(bank.storage.engine.sync_engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(bank.storage.engine.sync_engine, "before_cursor_execute", note)


async def test_two_statements_per_request(bank: Bank) -> None:
    """The claim, and the answer; a repetition tries to claim, and reads."""
    async with bank.client() as client:
        await client.post("/payments", json={}, headers={"idempotency-key": "warm"})
        for path in ("/payments", "/outside"):
            with statements(bank) as sent:
                await client.post(path, json={})
            assert ["INSERT", "UPDATE"] == sent
            with statements(bank) as sent:
                await client.post(path, json={})
            assert ["INSERT", "SELECT"] == sent


async def test_without_a_key_nothing_is_asked(bank: Bank) -> None:
    async with bank.client() as client:
        del client.headers["idempotency-key"]
        with statements(bank) as sent:
            await client.post("/monthly")
            await client.post("/payments", json={})
    assert [] == sent


@pytest.mark.parametrize("vault", list(ROUND_TRIPS), indirect=True)
async def test_round_trips(bank: Bank, vault: Database, tmp_path: Path) -> None:
    """The same payment with a key and without, on one connection."""
    count = {"mariadb": questions, "postgres-psycopg": trace}[vault.name]
    one = {"pool_size": 1, "max_overflow": 0, "notify": False}
    async with (
        SqlAlchemyStorage(vault.url, **one) as storage,
        Bank(storage).client() as client,
    ):

        async def request(path: str) -> None:
            headers = {"idempotency-key": f"k-{uuid4()}"}
            assert 201 == (await client.post(path, json={}, headers=headers)).status_code

        await request("/payments")  # checks the tables, too
        with_key = await count(storage, tmp_path, lambda: request("/payments"))
        without = await count(storage, tmp_path, lambda: request("/free"))
    assert ROUND_TRIPS[vault.name] == with_key - without


async def questions(
    storage: SqlAlchemyStorage, _folder: Path, work: Callable[[], Awaitable[None]]
) -> int:
    """Count by what the server says."""

    async def asked() -> int:
        async with storage.engine.connect() as connection:
            row = (await connection.execute(text("SHOW SESSION STATUS LIKE 'Questions'"))).one()
            return int(row[1])

    before = await asked()
    await work()
    return await asked() - before


async def trace(
    storage: SqlAlchemyStorage, folder: Path, work: Callable[[], Awaitable[None]]
) -> int:
    """Count by what libpq says: a round trip ends with Query or Sync."""
    async with storage.engine.connect() as connection:
        raw = await connection.get_raw_connection()
        driver: Any = raw.driver_connection
    path = folder / "trace"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    driver.pgconn.trace(file)
    try:
        await work()
    finally:
        driver.pgconn.untrace()
        os.close(file)
    return len(re.findall(r"\tF\t\d+\t(?:Sync|Query)\b", path.read_text()))
