"""The outbox as its document describes it: sessions, SKIP LOCKED, PUBLISHING, SENT, its indexes.

Batches are larger than its 100, and it never sleeps between them.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from driving import PAYLOAD, TEXT, main, writes
from sessions import business, prepare
from sqlalchemy import JSON, DateTime, Index, String, and_, func, insert, or_, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

BATCH = 1000


class Base(DeclarativeBase):
    pass


class Record(Base):
    __tablename__ = "outbox"
    __table_args__ = (
        Index("ix_tenant_id_status", "tenant_id", "status"),
        Index("ix_outbox_processing", "status", "retry_after"),
        Index("ix_outbox_topic", "topic"),
    )

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(String(64))
    aggregate_id: Mapped[str | None] = mapped_column(String(128))
    aggregate_type: Mapped[str | None] = mapped_column(String(100))
    topic: Mapped[str] = mapped_column(String(128))
    occurred_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    payload: Mapped[Any] = mapped_column(JSON)
    event_metadata: Mapped[Any] = mapped_column(JSON)
    routing_key: Mapped[str | None] = mapped_column(String(100))
    schema_id: Mapped[str | None] = mapped_column(String(128))
    schema_version: Mapped[int] = mapped_column(default=1)
    status: Mapped[str] = mapped_column(String(10), default="NEW")
    retry_count: Mapped[int] = mapped_column(default=0)
    retry_after: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))
    error_message: Mapped[str | None] = mapped_column(String(500))
    created_at: Mapped[datetime] = mapped_column(DateTime(timezone=True), server_default=func.now())


class Sink:
    """A broker that counts, and accepts everything."""

    count = 0

    async def publish(self, topic: str, payload: Any) -> None:
        self.count += 1


def _record(number: int) -> Record:
    return Record(
        id=str(uuid4()),
        tenant_id="default",
        aggregate_id=f"k{number}",
        topic="orders",
        occurred_at=datetime.now(UTC),
        payload=PAYLOAD,
        event_metadata={},
    )


async def relay(events: int) -> dict[str, float]:
    engine, sessions = await prepare(Base.metadata)
    async with sessions() as session:
        session.add_all(_record(number) for number in range(events))
        await session.commit()
    async with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        await connection.execute(text("VACUUM ANALYZE outbox"))
    sink, began = Sink(), time.perf_counter()
    due = or_(
        Record.status == "NEW", and_(Record.status == "FAILED", Record.retry_after <= func.now())
    )
    claim = (
        select(Record)
        .where(Record.tenant_id == "default", due)
        .order_by(Record.created_at)
        .limit(BATCH)
        .with_for_update(skip_locked=True)
    )
    while sink.count < events:
        async with sessions() as session:
            records = (await session.scalars(claim)).all()
            for record in records:
                record.status = "PUBLISHING"
            await session.commit()
            for record in records:
                try:
                    await sink.publish(record.topic, record.payload)
                    record.status = "SENT"
                except Exception as error:  # noqa: BLE001  as described
                    record.status, record.error_message = "FAILED", str(error)[:500]
                    record.retry_count += 1
                    record.retry_after = datetime.now(UTC) + timedelta(seconds=1)
            await session.commit()
    return {"": sink.count / (time.perf_counter() - began)}


async def write(transactions: int, connections: int) -> dict[str, float]:
    _, sessions = await prepare(Base.metadata)

    async def transaction(events: int, number: int) -> None:
        async with sessions() as session:
            await session.execute(insert(business), {"text": TEXT[:200]})
            session.add_all(_record(number) for _ in range(events))
            await session.commit()

    return await writes(transaction, transactions, connections)


main(relay=relay, write=write)
