"""omni-box: the loop of its documentation around `publish_batch`, with large batches."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

from driving import KEYS, PAYLOAD, TEXT, Counter, main, writes
from omni_box.application.services.publish import OutboxPublisher
from omni_box.core.services.domain import OmniBoxDomainService
from omni_box.infra.storage.postgres.orm import OutboxEventDBBase
from omni_box.infra.storage.postgres.repositories.outbox import PostgresOutboxRepository
from sessions import business, prepare
from sqlalchemy import insert
from sqlalchemy.orm import DeclarativeBase


class Base(DeclarativeBase): ...


class OutboxEvents(Base, OutboxEventDBBase): ...


class Sink:
    """A publisher that counts the events whose key is not that of others."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter

    async def publish(self, event: Any, repo: Any) -> None:
        if event.partition_key != "other":
            self._counter.add()


def _event(key: str) -> Any:
    return OmniBoxDomainService().create_outbox_event(
        aggregate_type="order",
        aggregate_id=uuid4(),
        event_type="order.placed",
        topic="orders",
        partition_key=key,
        payload=PAYLOAD,
    )


async def _drain(sessions: Any, wanted: int, seconds: float | None = None) -> float:
    counter = Counter(wanted)

    async def loop() -> None:
        while not counter.is_full:
            async with sessions() as session, session.begin():
                repository = PostgresOutboxRepository(session, model_class=OutboxEvents)
                publisher = OutboxPublisher(repository, Sink(counter))
                await publisher.publish_batch(worker_id="w-1", batch_size=500)

    task = asyncio.create_task(loop())
    await counter.wait(seconds)
    if counter.is_full:
        await task
    else:
        task.cancel()
    return counter.rate()


async def _fill(sessions: Any, keys: list[str]) -> None:
    async with sessions() as session, session.begin():
        repository = PostgresOutboxRepository(session, model_class=OutboxEvents)
        for key in keys:
            await repository.create(_event(key))


async def relay(events: int) -> dict[str, float]:
    _, sessions = await prepare(Base.metadata)
    await _fill(sessions, [f"k{number % KEYS}" for number in range(events)])
    return {"": await _drain(sessions, events)}


async def hot(hot: int, others: int, seconds: float) -> dict[str, float]:
    _, sessions = await prepare(Base.metadata)
    await _fill(sessions, ["hot"] * hot + ["other"] * others)
    return {"": await _drain(sessions, hot, seconds)}


async def write(transactions: int, connections: int) -> dict[str, float]:
    _, sessions = await prepare(Base.metadata)

    async def transaction(events: int, number: int) -> None:
        async with sessions() as session, session.begin():
            await session.execute(insert(business), {"text": TEXT[:200]})
            repository = PostgresOutboxRepository(session, model_class=OutboxEvents)
            for _ in range(events):
                await repository.create(_event(f"k{number}"))

    return await writes(transaction, transactions, connections)


main(relay=relay, hot=hot, write=write)
