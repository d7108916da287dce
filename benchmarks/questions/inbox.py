"""What does it cost to process a message once?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import insert
from sqlalchemy.dialects.postgresql import insert as upsert

from benchmarks.databases import TEXT, business, storage
from benchmarks.runner import Bench, pick
from semel import ConsumerInbox, MessageEnvelope, SqlAlchemyStorage, UnitOfWork
from semel.sqlalchemy.tables import InboxRecord
from tests.stores.bulk import fill_inbox

WORKERS = 8
BATCH = 100
UNIT = "messages/s"
BARE = "limit: bare inserts"
SINGLE = "semel, one message per transaction"
BATCHED = f"semel, batches of {BATCH}"


async def ask(bench: Bench) -> None:
    messages = bench.size(8000 if bench.full else 1000, least=200)
    sizes = (0, 1_000_000, 10_000_000) if bench.full else (0, 200_000)
    rates: dict[int, dict[str, Any]] = {}
    for size in (bench.size(size, least=0) for size in sizes):
        async with storage(bench) as made:
            if size:
                bench.tell(f"{size:,} rows in the inbox")
                await fill_inbox(made, size)
            rates[size] = await bench.compare(sides(made, messages), unit=UNIT)
    first, *_, last = rates
    title = f"Inbox, {messages:,} messages by {WORKERS} workers, {{:,}} rows there before"
    for number, (size, found) in enumerate(rates.items()):
        bench.answer(
            f"inbox-{number}", title.format(size), pick(found, BARE, SINGLE), SINGLE, BARE, 0.8
        )
        bench.answer(
            f"inbox-batch-{number}",
            title.format(size),
            pick(found, SINGLE, BATCHED),
            BATCHED,
            SINGLE,
            4.0,
        )
    for name in (SINGLE, BATCHED):
        grown = {f"{name}, {size:,} rows": found[name] for size, found in rates.items()}
        kind = "batch" if name is BATCHED else "single"
        bench.answer(
            f"inbox-growth-{kind}",
            f"Inbox with {last:,} rows beside {first:,} rows",
            grown,
            f"{name}, {last:,} rows",
            f"{name}, {first:,} rows",
            0.8,
        )


def sides(made: SqlAlchemyStorage, messages: int) -> dict[str, Callable[[], Any]]:
    """The bare transaction, and semel's two ways; each of new messages."""
    inbox = ConsumerInbox(made, consumer_name="bench")

    async def handler(payload: dict[str, str], uow: UnitOfWork) -> None:
        await uow.session.execute(insert(business), {"text": payload["text"][:200]})

    async def bare(message: MessageEnvelope) -> None:
        async with made.session_factory() as session:
            await session.execute(_gate(made), _row(message))
            await session.execute(insert(business), {"text": message.payload["text"][:200]})
            await session.commit()

    async def single(message: MessageEnvelope) -> None:
        await inbox.process(
            message.event_id, message.topic, message.event_type, message.payload, handler
        )

    async def batch(some: Sequence[MessageEnvelope]) -> None:
        await inbox.process_batch(some, handler)

    async def rate(one: Callable[[Any], Any], size: int | None = None) -> float:
        fresh = [_message() for _ in range(messages)]
        work = fresh if size is None else [fresh[n : n + size] for n in range(0, messages, size)]
        return messages / await spread(one, work)

    return {
        BARE: lambda: rate(bare),
        SINGLE: lambda: rate(single),
        BATCHED: lambda: rate(batch, BATCH),
    }


def _gate(made: SqlAlchemyStorage) -> Any:
    """The insert that tells new messages, as one writes it by hand for this database."""
    if made.engine.dialect.name == "postgresql":
        return upsert(InboxRecord).on_conflict_do_nothing()
    return insert(InboxRecord)


def _row(message: MessageEnvelope) -> dict[str, Any]:
    return {
        "tenant_id": message.tenant_id,
        "consumer_name": "bare",
        "message_id": message.event_id,
        "event_type": message.event_type,
        "source": message.topic,
        "status": "PROCESSED",
        "attempts": 1,
        "received_at": message.occurred_at,
        "processed_at": message.occurred_at,
    }


def _message() -> MessageEnvelope:
    return MessageEnvelope(topic="orders", event_type="OrderPlaced", payload={"text": TEXT})


async def spread(one: Callable[[Any], Any], work: Sequence[Any], workers: int = WORKERS) -> float:
    """Do all *work* by some workers; return the seconds that it took."""
    left = iter(work)

    async def worker() -> None:
        for item in left:
            await one(item)

    began = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(workers)))
    return time.perf_counter() - began
