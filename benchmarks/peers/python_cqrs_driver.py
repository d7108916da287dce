"""python-cqrs: its producer loop with a broker that drops everything."""

from __future__ import annotations

import time
from typing import Any

import cqrs
import pydantic
from cqrs.message_brokers.producer import EventProducer
from cqrs.outbox.sqlalchemy import Base, SqlAlchemyOutboxedEventRepository
from driving import TEXT, main, writes
from sessions import business, prepare
from sqlalchemy import insert


class Body(pydantic.BaseModel):
    text: str


cqrs.OutboxedEventMap.register("OrderPlaced", cqrs.NotificationEvent[Body])


class Sink:
    """A broker that counts."""

    count = 0

    async def send_message(self, message: Any) -> None:
        self.count += 1


def _event() -> Any:
    return cqrs.NotificationEvent[Body](
        event_name="OrderPlaced", topic="orders", payload=Body(text=TEXT)
    )


async def relay(events: int) -> dict[str, float]:
    _, sessions = await prepare(Base.metadata)
    async with sessions() as session:
        repository = SqlAlchemyOutboxedEventRepository(session)
        for _ in range(events):
            repository.add(_event())
        await repository.commit()
    sink = Sink()
    async with sessions() as session:
        repository = SqlAlchemyOutboxedEventRepository(session)
        producer = EventProducer(message_broker=sink, repository=repository)
        began = time.perf_counter()
        async for batch in producer.event_batch_generator(500):
            for event in batch:
                await producer.send_message(event)
            await repository.commit()
            if sink.count >= events:
                break
        return {"": sink.count / (time.perf_counter() - began)}


async def write(transactions: int, connections: int) -> dict[str, float]:
    _, sessions = await prepare(Base.metadata)

    async def transaction(events: int, number: int) -> None:
        async with sessions() as session:
            await session.execute(insert(business), {"text": TEXT[:200]})
            repository = SqlAlchemyOutboxedEventRepository(session)
            for _ in range(events):
                repository.add(_event())
            await repository.commit()

    return await writes(transaction, transactions, connections)


main(relay=relay, write=write)
