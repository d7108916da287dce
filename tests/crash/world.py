"""What a story happens in: a database, a file outside of all processes, and the books."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Integer, Select, String, delete, select, update
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from semel import SqlAlchemyStorage
from semel.sqlalchemy.bus_tables import BusGroup, BusMember, BusMessage, BusPartition
from semel.sqlalchemy.layout import DEAD_BLOCKING
from semel.sqlalchemy.tables import (
    AuditRecord,
    IdempotencyRecord,
    InboxRecord,
    OutboxInstance,
    OutboxLease,
    OutboxRecord,
)

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
#: Of everything that holds a lease: no life lasts as long, so only the dead lose theirs.
LEASE_SECONDS = 120.0


class Base(DeclarativeBase):
    """The service's own tables."""


class Ledger(Base):
    """What was committed, written in the same transaction as its event: the truth."""

    __tablename__ = "crash_ledger"
    name: Mapped[str] = mapped_column(String(64), primary_key=True)


class Effect(Base):
    """What a handler or a call did."""

    __tablename__ = "crash_effect"
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    who: Mapped[str] = mapped_column(String(64))
    what: Mapped[str] = mapped_column(String(64))


class Violation(NamedTuple):
    """A promise that was broken, and by what: lost, ghost, twice, order, answer, left, stuck."""

    kind: str
    detail: str


class World:
    """One database and one file of notes."""

    def __init__(self, engine: AsyncEngine, folder: Path) -> None:
        self.storage = SqlAlchemyStorage(engine)
        self.notes = folder / "notes"

    @property
    def engine(self) -> AsyncEngine:
        return self.storage.engine

    async def create(self) -> None:
        await self.storage.initialize()
        async with self.engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)

    async def empty(self) -> None:
        """Begin anew."""
        self.notes.unlink(missing_ok=True)
        service = (Ledger, Effect)
        relay = (OutboxRecord, OutboxLease, OutboxInstance, AuditRecord)
        bus = (BusMessage, BusGroup, BusMember, BusPartition)
        async with self.engine.begin() as connection:
            for table in (*service, *relay, *bus, InboxRecord, IdempotencyRecord):
                await connection.execute(delete(table))

    async def let_leases_expire(self) -> None:
        """Time passes: whoever is dead holds nothing any more."""
        async with self.engine.begin() as connection:
            for statement in (
                update(OutboxLease).values(expires_at=LONG_AGO),
                update(OutboxInstance).values(heartbeat_at=LONG_AGO),
                update(BusGroup).where(BusGroup.owner.is_not(None)).values(expires_at=LONG_AGO),
                update(BusMember).values(expires_at=LONG_AGO),
                update(IdempotencyRecord).values(locked_until=LONG_AGO),
            ):
                await connection.execute(statement)

    def note(self, **fields: Any) -> None:
        """Write down what an outsider saw; it survives the process."""
        file = os.open(self.notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, json.dumps(fields).encode() + b"\n")
        os.close(file)

    def noted(self) -> list[dict[str, Any]]:
        if not self.notes.exists():
            return []
        return [json.loads(line) for line in self.notes.read_text().splitlines()]

    async def rows(self, statement: Select[Any]) -> list[Any]:
        reader = self.engine.execution_options(semel_read_only=True)
        async with reader.connect() as connection:
            return list(await connection.execute(statement))

    async def did(self, name: str) -> bool:
        return bool(await self.rows(select(Ledger.name).where(Ledger.name == name)))

    async def close(self) -> None:
        await self.storage.close()
        await self.engine.dispose()


class Books:
    """Collects what is wrong."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.violations: list[Violation] = []

    def add(self, kind: str, detail: Any) -> None:
        self.violations.append(Violation(kind, str(detail)))

    def same(self, what: str, expected: Iterable[Any], found: Iterable[Any]) -> None:
        """Each expected once: what is missing is lost, what nobody expected a ghost."""
        wanted, there = Counter(expected), Counter(found)
        for item in sorted((wanted - there).keys(), key=str):
            self.add("lost", f"{what}: {item}")
        for item in sorted((there - wanted).keys(), key=str):
            self.add("twice" if item in wanted else "ghost", f"{what}: {item}")

    def in_order(self, what: str, found: Iterable[tuple[str, int]]) -> None:
        """Numbers rise within their key; the first of each counts, as for readers with an inbox."""
        keys: defaultdict[str, list[int]] = defaultdict(list)
        for key, number in dict.fromkeys(found):
            keys[key].append(number)
        for key, numbers in keys.items():
            if numbers != sorted(numbers):
                self.add("order", f"{what}: {key} {numbers}")

    async def published(self, topic: str) -> list[str]:
        """Return the ids in the logs of *topic*, as they came."""
        found = await self.world.rows(
            select(BusMessage.headers)
            .join(BusPartition, BusPartition.id == BusMessage.partition_id)
            .where(BusPartition.topic == topic)
            .order_by(BusMessage.partition_id, BusMessage.position)
        )
        return [headers["message_id"] for (headers,) in found]

    async def effects(self, who: str) -> list[str]:
        found = await self.world.rows(
            select(Effect.what).where(Effect.who == who).order_by(Effect.number)
        )
        return [row[0] for row in found]

    async def answers(self) -> None:
        """Whoever asked with a key got the same answer each time."""
        seen: defaultdict[str, set[str]] = defaultdict(set)
        for line in self.world.noted():
            if "answer" in line:
                seen[line["key"]].add(json.dumps(line["answer"]))
        for key, answers in seen.items():
            if len(answers) > 1:
                self.add("answer", f"{key}: {len(answers)} different ones")

    async def nothing_left(self, *, unsent: str = "") -> None:
        """No lease, no claim, no member stays behind, and no event but of a topic nobody sends."""
        now = datetime.now(UTC) + timedelta(seconds=1)
        leftovers = {
            "lease": select(OutboxLease.owner).where(OutboxLease.owner.is_not(None)),
            "projector": select(OutboxInstance.id),
            "log": select(BusGroup.owner).where(BusGroup.owner.is_not(None)),
            "member": select(BusMember.id).where(BusMember.expires_at > now),
            "key": select(IdempotencyRecord.key_prefix).where(IdempotencyRecord.state == "STARTED"),
            "event": select(OutboxRecord.id).where(
                OutboxRecord.topic != unsent,
                OutboxRecord.status.not_in(["SENT", "DEAD"]) | (OutboxRecord.lane < DEAD_BLOCKING),
            ),
        }
        for what, statement in leftovers.items():
            for row in await self.world.rows(statement):
                self.add("left", f"{what} {row[0]}")
