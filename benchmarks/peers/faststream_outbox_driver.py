"""faststream-outbox: one subscriber whose handler is the sink, with batched deletes."""

from __future__ import annotations

import asyncio

from driving import PAYLOAD, TEXT, Counter, main, writes
from faststream_outbox import OutboxBroker, make_outbox_table
from sessions import business, prepare
from sqlalchemy import MetaData, func, insert, select

metadata = MetaData()
outbox = make_outbox_table(metadata, "outbox")


async def relay(events: int) -> dict[str, float]:
    figures = {}
    for name, flush in ((", defaults", 1), (", batched deletes", 100)):
        figures[name] = await _relay(events, flush)
    return figures


async def _relay(events: int, flush: int) -> float:
    engine, sessions = await prepare(metadata)
    broker = OutboxBroker(engine, outbox_table=outbox, logger=None)
    counter: Counter

    @broker.subscriber(
        "orders",
        max_workers=4,
        fetch_batch_size=500,
        terminal_flush_batch_size=flush,
        min_fetch_interval=0.01,
        max_fetch_interval=0.05,
    )
    async def sink(body: dict) -> None:
        counter.add()

    async with sessions() as session, session.begin():
        for start in range(0, events, 500):
            count = min(500, events - start)
            await broker.publish_batch(*[PAYLOAD] * count, queue="orders", session=session)
    counter = Counter(events)
    await broker.start()
    await counter.wait()
    async with engine.connect() as connection:
        while await connection.scalar(select(func.count()).select_from(outbox)):
            await asyncio.sleep(0.01)
    found = counter.rate()
    await broker.stop()
    await engine.dispose()
    return found


async def write(transactions: int, connections: int) -> dict[str, float]:
    engine, sessions = await prepare(metadata)
    broker = OutboxBroker(engine, outbox_table=outbox, logger=None)
    # Its documentation starts the broker before anything is published.
    await broker.start()

    async def transaction(events: int, number: int) -> None:
        async with sessions() as session, session.begin():
            await session.execute(insert(business), {"text": TEXT[:200]})
            if events == 1:
                await broker.publish(PAYLOAD, queue="orders", session=session)
            elif events:
                await broker.publish_batch(*[PAYLOAD] * events, queue="orders", session=session)

    return await writes(transaction, transactions, connections)


main(relay=relay, write=write)
