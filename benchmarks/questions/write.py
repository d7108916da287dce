"""What do events cost the transaction that writes them?"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from benchmarks import peers
from benchmarks.databases import PAYLOAD, TEXT, business, empty, storage
from benchmarks.runner import Answer, Bench, pick
from semel import SqlAlchemyOutbox
from semel.envelope import new_event_id

CONNECTIONS = 8
UNIT = "tx/s"
PLAIN = "limit: plain transaction"
TARGETS = {1: 0.7, 10: 0.6}
BY_HAND = "the same rows by hand"
# As cheap as one can write it for asyncpg: no lock, no check, no encoding, one argument per row.
_INSERT = """
INSERT INTO outbox (id, tenant_id, topic, event_type, order_key, occurred_at, payload, content_type,
                    event_metadata, schema_version, created_at, partition_no, lane, status)
SELECT id, 'default', 'orders', 'orders', $2, $3, CAST($4 AS json), 'application/json',
       CAST('{}' AS json), 1, $3, 7, 7, 'NEW'
FROM unnest(CAST($1 AS text[])) AS id
"""


async def ask(bench: Bench) -> None:
    count = bench.size(8000 if bench.full else 1200, least=80)
    async with storage(bench) as made:
        # An engine that semel has never seen.
        plain = create_async_engine(made.engine.url, pool_size=CONNECTIONS)

        async def rate(events: int, *, by_hand: bool = False) -> float:
            await empty(made)
            ours = events and not by_hand
            factory = made.session_factory if ours else async_sessionmaker(plain)
            return await transactions(factory, count, events, by_hand=by_hand)

        sides = await bench.compare(
            {
                PLAIN: lambda: rate(0),
                "semel, 1 event": lambda: rate(1),
                "semel, 10 events": lambda: rate(10),
                **{
                    _name(BY_HAND, number): lambda number=number: rate(number, by_hand=True)
                    for number in TARGETS
                },
                **peers.sides(bench, "write", transactions=count, connections=CONNECTIONS),
            },
            unit=UNIT,
        )
        await plain.dispose()
    title = f"Transactions on {CONNECTIONS} connections with {{}} keyed event{{}} each"
    for events, target in TARGETS.items():
        measured = _name("semel", events)
        bench.answer(
            f"write-{events}",
            title.format(events, "s" * (events > 1)),
            pick(sides, PLAIN, measured, _name(BY_HAND, events)),
            measured,
            PLAIN,
            target,
            note="By hand: a bare INSERT of the same rows, by asyncpg, in the same transaction.",
        )
        if bench.peers:
            _beside(bench, sides, events, title.format(events, "s" * (events > 1)))


def _name(who: str, events: int) -> str:
    return f"{who}, {events} event{'s' * (events > 1)}"


def _beside(bench: Bench, sides: dict, events: int, title: str) -> None:
    """Each peer relative to its own plain transaction, on its own stack."""
    shares = {
        who: sides[_name(who, events)].median / sides[f"{who}, plain"].median
        for who in {name.partition(", ")[0] for name in peers.names_of(sides)}
    }
    best = max(shares, key=shares.__getitem__, default=None)
    ours = sides[_name("semel", events)].median / sides[PLAIN].median
    shown = [name for who in shares for name in (f"{who}, plain", _name(who, events))]
    bench.keep(
        Answer(
            question=f"write-{events}-peers",
            title=f"{title}: beside the best peer",
            sides=pick(sides, PLAIN, _name("semel", events), *shown),
            measured="semel's share of a plain transaction",
            against="the best peer's" if best is None else f"that of {best}",
            ratio=None if best is None else ours / shares[best],
            target=1.0,
        )
    )


async def transactions(
    factory: async_sessionmaker[AsyncSession],
    count: int,
    events: int,
    connections: int = CONNECTIONS,
    *,
    by_hand: bool = False,
) -> float:
    """Business transactions per second, each with so many keyed events."""
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            async with factory() as session:
                await session.execute(insert(business), {"text": TEXT[:200]})
                if by_hand:
                    await _insert(session, events, key=f"k{number}")
                elif events:
                    outbox = SqlAlchemyOutbox(session)
                    for _ in range(events):
                        await outbox.add("orders", {"text": TEXT}, key=f"k{number}")
                await session.commit()

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(connections)))
    return count / (time.perf_counter() - began)


async def _insert(session: AsyncSession, events: int, *, key: str) -> None:
    raw = await (await session.connection()).get_raw_connection()
    ids = [new_event_id() for _ in range(events)]
    await raw.driver_connection.execute(_INSERT, ids, key, datetime.now(UTC), PAYLOAD)
