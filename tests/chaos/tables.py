"""The workload's own tables, and triggers that write down what happens to the outbox."""

from __future__ import annotations

import hashlib
import json
import time
from typing import Any

from sqlalchemy import BigInteger, Float, Integer, String, insert
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from semel import SqlAlchemyStorage
from tests.chaos.plan import ACCOUNTS, INITIAL, KEYS, ODD, TENANTS

_NUMBER = BigInteger().with_variant(Integer, "sqlite")


class Base(DeclarativeBase):
    __table_args__ = {"mysql_engine": "InnoDB"}  # noqa: RUF012  SQLAlchemy wants it so


class Account(Base):
    __tablename__ = "chaos_account"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    cents: Mapped[int]
    version: Mapped[int] = mapped_column(default=0)


class Stream(Base):
    """How many events a key has."""

    __tablename__ = "chaos_stream"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    version: Mapped[int] = mapped_column(default=0)


class Execution(Base):
    """One row each time that a request with a key was executed and committed."""

    __tablename__ = "chaos_execution"

    number: Mapped[int] = mapped_column(_NUMBER, primary_key=True)
    tenant: Mapped[str] = mapped_column(String(40))
    key: Mapped[str] = mapped_column(String(80))
    body: Mapped[str] = mapped_column(String(64))


class Committed(Base):
    """The truth about an event, written in its transaction."""

    __tablename__ = "chaos_ledger"

    number: Mapped[int] = mapped_column(_NUMBER, primary_key=True)
    id: Mapped[str] = mapped_column(String(80))
    tenant: Mapped[str] = mapped_column(String(40))
    key: Mapped[str] = mapped_column(String(80))
    version: Mapped[int]
    sha256: Mapped[str] = mapped_column(String(64))
    tx: Mapped[str] = mapped_column(String(40))
    t: Mapped[float] = mapped_column(Float(53))


class Effect(Base):
    """What a group's handling of an event did."""

    __tablename__ = "chaos_effect"

    seq: Mapped[int] = mapped_column(_NUMBER, primary_key=True)
    group: Mapped[str] = mapped_column("grp", String(40))
    tenant: Mapped[str] = mapped_column(String(40))
    id: Mapped[str] = mapped_column(String(80))
    key: Mapped[str] = mapped_column(String(80))
    version: Mapped[int]
    sha256: Mapped[str] = mapped_column(String(64))
    t: Mapped[float] = mapped_column(Float(53))


class Transition(Base):
    """What a trigger saw of a row of the outbox."""

    __tablename__ = "chaos_transition"

    number: Mapped[int] = mapped_column(_NUMBER, primary_key=True)
    id: Mapped[str] = mapped_column(String(255))
    old: Mapped[str | None] = mapped_column(String(10))
    new: Mapped[str | None] = mapped_column(String(10))
    attempts: Mapped[int | None]
    epoch: Mapped[int | None] = mapped_column(_NUMBER)


class Takeover(Base):
    """A partition that was claimed although its last owner had not given it back."""

    __tablename__ = "chaos_takeover"

    number: Mapped[int] = mapped_column(_NUMBER, primary_key=True)
    owner: Mapped[str] = mapped_column(String(255))
    until: Mapped[str | None] = mapped_column(String(40))


def digest(payload: Any) -> str:
    return hashlib.sha256(json.dumps(payload, sort_keys=True).encode()).hexdigest()


def committed(record_id: str, tenant: str, payload: dict[str, Any], tx: str) -> Committed:
    """Return the ledger's row of an event."""
    return Committed(
        id=record_id,
        tenant=tenant,
        key=payload["key"],
        version=payload["version"],
        sha256=digest(payload),
        tx=tx,
        t=time.monotonic(),
    )


_EPOCH = "(SELECT epoch FROM outbox_lease WHERE scope = '*' AND partition_no = NEW.partition_no)"
_NOTE = "INSERT INTO chaos_transition (id, old, new, attempts, epoch) VALUES "
_INSERTED = f"{_NOTE}(NEW.id, NULL, NEW.status, NEW.retry_count, NULL);"
_CHANGED = f"{_NOTE}(NEW.id, OLD.status, NEW.status, NEW.retry_count, {_EPOCH});"
_DELETED = f"{_NOTE}(OLD.id, OLD.status, NULL, OLD.retry_count, NULL);"
_TAKEN = "INSERT INTO chaos_takeover (owner, until) VALUES (OLD.owner, NEW.expires_at);"
_IF_CHANGED = "NEW.status <> OLD.status OR NEW.retry_count <> OLD.retry_count"
_IF_TAKEN = "NEW.epoch > OLD.epoch AND OLD.owner IS NOT NULL"
#: Name, moment, table, condition, action.
_TRIGGERS = (
    ("chaos_i", "INSERT", "outbox", None, _INSERTED),
    ("chaos_u", "UPDATE", "outbox", _IF_CHANGED, _CHANGED),
    ("chaos_d", "DELETE", "outbox", None, _DELETED),
    ("chaos_t", "UPDATE", "outbox_lease", _IF_TAKEN, _TAKEN),
)


def _trigger(
    database: str, name: str, moment: str, table: str, when: str | None, do: str
) -> list[str]:
    head = f"CREATE TRIGGER {name} AFTER {moment} ON {table} FOR EACH ROW"
    if database == "sqlite":
        condition = f" WHEN {when}" if when else ""
        return [f"{head}{condition} BEGIN {do} END"]
    if database == "mariadb":
        # Read beforehand: a SELECT inside INSERT would lock the lease.
        do = do.replace(_EPOCH, "@chaos_epoch")
        before = f"SET @chaos_epoch = {_EPOCH};" if "@chaos_epoch" in do else ""
        body = f"IF {when} THEN {before}{do} END IF;" if when else do
        return [f"{head} BEGIN {body} END"]
    body = f"IF {when} THEN {do} END IF;" if when else do
    body = body.replace("NEW.expires_at", "NEW.expires_at::text")
    function = (
        f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN {body} RETURN NULL; END $$"
    )
    return [function, f"{head} EXECUTE FUNCTION {name}()"]


async def create(storage: SqlAlchemyStorage, database: str) -> None:
    """Make semel's tables, the workload's, and the triggers; fill in the accounts and keys."""
    await storage.initialize()
    async with storage.engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
        for trigger in _TRIGGERS:
            for statement in _trigger(database, *trigger):
                await connection.exec_driver_sql(statement)
        await _fill(connection)


async def _fill(connection: AsyncConnection) -> None:
    accounts = [f"{tenant}-a{n}" for tenant in TENANTS for n in range(ACCOUNTS)]
    rows = [{"id": name, "cents": INITIAL, "version": 0} for name in accounts]
    await connection.execute(insert(Account), rows)
    keys = [f"k{n}" for n in range(KEYS)] + [f"big-{n}" for n in range(3)]
    assert "big" in ODD.values()
    streams = [f"{tenant}-{key}" for tenant in TENANTS for key in keys]
    await connection.execute(insert(Stream), [{"id": each, "version": 0} for each in streams])
