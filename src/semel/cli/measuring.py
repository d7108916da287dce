"""What `semel bench` measures."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from semel.envelope import MessageEnvelope
from semel.errors import PublishError
from semel.inbox import ConsumerInbox
from semel.projector import OutboxProjector
from semel.settings import OutboxProjectorConfig
from semel.sqlalchemy.scratch import write_business_row

if TYPE_CHECKING:
    from semel.protocols import MessageBus, UnitOfWork
    from semel.sqlalchemy.storage import SqlAlchemyStorage

TOPIC = "semel-bench"
WORKERS = 8
_BATCH = 1000
_KEYS = 997
_PER_SECOND = 100
_PAYLOAD = {"text": "x" * 480}
_ROW = "x" * 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One answer."""

    question: str
    side: str
    figure: float
    unit: str


class Sink:
    """A bus that keeps nothing, or hands on to *bus*; notes when it got each event first."""

    def __init__(self, bus: MessageBus | None = None, *, wanted: int = 0) -> None:
        self._bus = bus
        self._wanted = wanted
        self.full = asyncio.Event()
        self.count = 0
        self.seen: dict[str, float] | None = None
        self.failed: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    async def publish_many(
        self, messages: Sequence[MessageEnvelope]
    ) -> Sequence[PublishError | None]:
        """Count what is confirmed; keep what went wrong, for the one who waits."""
        results: Sequence[PublishError | None] = [None] * len(messages)
        if self._bus is not None:
            try:
                results = await self._bus.publish_many(messages)
            except Exception as error:
                self.failed = error
                raise
        self.failed = next((error for error in results if error is not None), self.failed)
        if self.seen is not None:
            now = time.perf_counter()
            for message in messages:
                self.seen.setdefault(message.event_id, now)
        self.count += len(messages)
        if self.count >= self._wanted:
            self.full.set()
        return results


async def writes(storage: SqlAlchemyStorage, count: int) -> list[Figure]:
    """Business transactions, with no event, one and ten."""

    async def transaction(events: int) -> None:
        async with storage.unit_of_work() as uow:
            await write_business_row(uow.session, _ROW)
            for number in range(events):
                await uow.outbox.add(TOPIC, _PAYLOAD, key=f"k{number}")
            await uow.commit()

    await transaction(1)  # connections, and the look at the tables
    found = []
    for events, side in ((0, "without events"), (1, "with 1 event"), (10, "with 10 events")):
        seconds = await _spread(transaction, [events] * count)
        found.append(Figure(question="write", side=side, figure=count / seconds, unit="tx/s"))
    return found


async def relay(
    storage: SqlAlchemyStorage, count: int, bus: MessageBus | None = None
) -> list[Figure]:
    """A backlog of many keys, from the first lease until the last event is acknowledged."""
    await _drain(storage, Sink(), 0)
    await fill(storage, count)
    began = time.perf_counter()
    await _drain(storage, Sink(bus), count)
    seconds = time.perf_counter() - began
    side = "into a sink" if bus is None else "to the bus"
    return [Figure(question="relay", side=side, figure=count / seconds, unit="events/s")]


async def fill(storage: SqlAlchemyStorage, count: int) -> None:
    """Write a backlog."""
    for start in range(0, count, 500):
        async with storage.unit_of_work() as uow:
            for number in range(start, min(start + 500, count)):
                await uow.outbox.add(TOPIC, _PAYLOAD, key=f"k{number % _KEYS}")
            await uow.commit()


async def _drain(storage: SqlAlchemyStorage, sink: Sink, count: int) -> None:
    """Send at least *count* events, and whatever else there is."""
    async with _projector(storage, sink) as projector:
        published = 1
        while published or sink.count < count:
            published = await projector.run_once()
            if sink.failed is not None:
                raise sink.failed


def _projector(storage: SqlAlchemyStorage, sink: Any) -> OutboxProjector:
    return OutboxProjector(
        message_bus=sink,
        tenant_id=None,
        store=storage.relay,
        config=OutboxProjectorConfig(batch_size=_BATCH),
    )


async def latency(storage: SqlAlchemyStorage, count: int) -> list[Figure]:
    """From the commit to the call of the broker, with an idle relay in the same process."""
    sink = Sink(wanted=count)
    sink.seen = {}
    committed: dict[str, float] = {}

    async def write() -> None:
        async with storage.unit_of_work() as uow:
            record = await uow.outbox.add(TOPIC, _PAYLOAD)
            committed[record.id] = time.perf_counter()
            await uow.commit()

    projector = _projector(storage, sink)
    running = asyncio.create_task(projector.run_forever())
    try:
        began = time.perf_counter()
        for number in range(count):
            await asyncio.sleep(max(0.0, began + number / _PER_SECOND - time.perf_counter()))
            await write()
        await sink.full.wait()
    finally:
        await projector.stop()
        await running
    late = sorted(1000 * (sink.seen[name] - at) for name, at in committed.items())
    cuts = statistics.quantiles(late, n=100, method="inclusive")
    return [
        Figure(question="commit to publish", side="p50", figure=cuts[49], unit="ms"),
        Figure(question="commit to publish", side="p99", figure=cuts[98], unit="ms"),
    ]


async def inbox(storage: SqlAlchemyStorage, count: int) -> list[Figure]:
    """Messages whose handler writes a row, one per transaction and in batches."""
    consumer = ConsumerInbox(storage, "bench")

    async def handler(_payload: Any, uow: UnitOfWork) -> None:
        await write_business_row(uow.session, _ROW)

    async def single(message: MessageEnvelope) -> None:
        await consumer.process_batch([message], handler)

    async def batch(messages: list[MessageEnvelope]) -> None:
        await consumer.process_batch(messages, handler)

    def fresh() -> list[MessageEnvelope]:
        return [MessageEnvelope(topic=TOPIC, payload=_PAYLOAD) for _ in range(count)]

    every = fresh()
    one = await _spread(single, fresh())
    many = await _spread(batch, [every[n : n + 100] for n in range(0, count, 100)])
    unit = "messages/s"
    return [
        Figure(question="inbox", side="one by one", figure=count / one, unit=unit),
        Figure(question="inbox", side="in batches of 100", figure=count / many, unit=unit),
    ]


async def _spread(one: Callable[[Any], Awaitable[None]], work: Iterable[Any]) -> float:
    """Do all *work* by some workers; return the seconds that it took."""
    left = iter(work)

    async def worker() -> None:
        for item in left:
            await one(item)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(WORKERS):
            group.create_task(worker())
    return time.perf_counter() - began
