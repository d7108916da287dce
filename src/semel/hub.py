"""Wiring: storage, bus, projector and consumers, started and stopped together."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from typing import Any, TypeVar

from semel.binding import Handler
from semel.commands import CommandBus
from semel.consumer import EventConsumer
from semel.envelope import DEFAULT_TENANT, check_name
from semel.errors import ConfigurationError, describe
from semel.health import ConsumerHealthService
from semel.maintenance import Removed, Retention, cleanup
from semel.observer import NullObserver
from semel.projector import OutboxProjector
from semel.protocols import MessageBus, Observer, Serializer
from semel.sampling import Sampler
from semel.serializers import Upcasters
from semel.settings import OutboxProjectorConfig
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.sqlalchemy.uow import SQLAlchemyUnitOfWork
from semel.states import OutboxStatus
from semel.transports.database import DatabaseMessageBus

H = TypeVar("H", bound=Handler)
_logger = logging.getLogger("semel.hub")
_UNSENT = (OutboxStatus.NEW, OutboxStatus.PUBLISHING, OutboxStatus.FAILED)


class Hub:
    """One service: what it stores, what it sends, what it listens to.

    *name* is the service's name: its consumers' name and group, and the source of its events.
    Without a *bus* the storage's own database is the broker. *serializers* and *upcasters* are
    for its consumers. *observer* hears of everything, and every *sample_seconds* of the figures
    that only the database and the broker know.
    """

    def __init__(
        self,
        name: str,
        *,
        storage: SqlAlchemyStorage,
        bus: MessageBus | None = None,
        config: OutboxProjectorConfig | None = None,
        tenant_id: str | None = None,
        retention: Retention | None = None,
        serializers: Iterable[Serializer] | None = None,
        upcasters: Upcasters | None = None,
        observer: Observer | None = None,
        sample_seconds: float = 15.0,
    ) -> None:
        self.name = check_name("the hub's name", name)
        self.storage = storage
        self.bus: MessageBus = DatabaseMessageBus(storage) if bus is None else bus
        self.config = config or OutboxProjectorConfig()
        self.tenant_id = tenant_id
        self.retention = retention or Retention()
        self.serializers = None if serializers is None else tuple(serializers)
        self.upcasters = upcasters or Upcasters()
        self.observer = observer or NullObserver()
        self.sample_seconds = sample_seconds
        if storage.observer is None:
            storage.observer = self.observer
        if getattr(self.bus, "source", None) == "semel":
            self.bus.source = self.name  # type: ignore[attr-defined]
        self.commands = CommandBus(storage, observer=self.observer)
        self.health = ConsumerHealthService()
        self.consumers: dict[str, EventConsumer] = {}
        self.projector: OutboxProjector | None = None
        self.runs: frozenset[str] = frozenset()
        self._parts: list[AbstractAsyncContextManager[Any]] = []

    def consumer(self, topic: str, **options: Any) -> EventConsumer:
        """Return this service's consumer of *topic*; *options* are those of `EventConsumer`."""
        known = self.consumers.get(topic)
        if known is not None:
            if options:
                raise ConfigurationError(
                    f"the consumer of {topic!r} exists already: give its options where it is "
                    "first used"
                )
            return known
        consumer = EventConsumer(
            options.pop("name", self.name),
            topic,
            options.pop("group_id", self.name),
            bus=self.bus,
            storage=self.storage,
            observer=options.pop("observer", self.observer),
            serializers=options.pop("serializers", self.serializers),
            upcasters=options.pop("upcasters", self.upcasters),
            health=None,
            **options,
        )
        return self.add(consumer)

    def add(self, consumer: EventConsumer) -> EventConsumer:
        """Start and stop *consumer*, such as a subclass of `EventConsumer`, with this hub."""
        if consumer.topic in self.consumers:
            raise ConfigurationError(f"this hub has a consumer of {consumer.topic!r} already")
        self.consumers[consumer.topic] = consumer
        consumer.watch(self.health, f"{consumer.name}:{consumer.topic}")
        return consumer

    def attach(self, part: AbstractAsyncContextManager[Any]) -> None:
        """Enter *part* whenever this hub has started, and leave it before the hub stops."""
        self._parts.append(part)

    def stalled(self, *, after: float) -> list[str]:
        """Return the loops that should run and do not, or made no turn for *after* seconds."""
        names = []
        if "projector" in self.runs:
            idle = None if self.projector is None else self.projector.seconds_since_turn
            if idle is None or idle > after:
                names.append("projector")
        if "consumers" in self.runs:
            names += [
                topic for topic, consumer in self.consumers.items() if not consumer.is_running
            ]
        return names

    def on(self, topic: str, event_type: str) -> Callable[[H], H]:
        """Register a handler for a type of event of a topic."""
        return self.consumer(topic).on(event_type)

    def unit_of_work(self, *, tenant_id: str = DEFAULT_TENANT) -> SQLAlchemyUnitOfWork:
        """Return a fresh unit of work."""
        return self.storage.unit_of_work(tenant_id=tenant_id, consumer_name=self.name)

    @asynccontextmanager
    async def running(
        self, *, projector: bool = True, consumers: bool = True
    ) -> AsyncIterator[Hub]:
        """Run the projector and the consumers while inside; stops them in the right order."""
        wanted = {"projector": projector, "consumers": consumers and bool(self.consumers)}
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.storage.close)
            await self.storage.ping()
            stack.push_async_callback(self.bus.close)
            await self._start_bus()
            if projector:
                await stack.enter_async_context(self._projecting())
            if consumers:
                for consumer in self.consumers.values():
                    await consumer.start()
                    stack.push_async_callback(consumer.stop)
            if type(self.observer) is not NullObserver:
                sampler = self._sampler(projector=projector, consumers=consumers)
                await stack.enter_async_context(sampler.running())
            for part in self._parts:
                await stack.enter_async_context(part)
            self.runs = frozenset(name for name, run in wanted.items() if run)
            stack.callback(self._stopped)
            yield self

    def _sampler(self, *, projector: bool, consumers: bool) -> Sampler:
        return Sampler(
            self.observer,
            outbox=self.storage.outbox if projector else None,
            consumers=self.consumers.values if consumers else tuple,
            seconds=self.sample_seconds,
        )

    def _stopped(self) -> None:
        self.runs = frozenset()

    async def _start_bus(self) -> None:
        try:
            await self.bus.start()
        except ConfigurationError:
            raise
        except Exception as error:  # noqa: BLE001  projector and consumers try again
            _logger.warning("the broker does not answer yet: %s", describe(error))

    @asynccontextmanager
    async def _projecting(self) -> AsyncIterator[None]:
        projector = OutboxProjector(
            message_bus=self.bus,
            tenant_id=self.tenant_id,
            config=self.config,
            store=self.storage.relay,
            observer=self.observer,
        )
        self.projector = projector
        task = asyncio.create_task(projector.run_forever(), name=f"semel-{self.name}-projector")
        task.add_done_callback(_tell)
        try:
            yield
        finally:
            await projector.stop()
            await asyncio.gather(task, return_exceptions=True)
            self.projector = None

    def lifespan(
        self, *, projector: bool = True, consumers: bool = True
    ) -> Callable[[Any], AbstractAsyncContextManager[None]]:
        """Return a lifespan for Starlette, FastAPI or Litestar: `FastAPI(lifespan=...)`."""

        @asynccontextmanager
        async def lifespan(_app: Any) -> AsyncIterator[None]:
            async with self.running(projector=projector, consumers=consumers):
                yield

        return lifespan

    async def run_forever(self, *, projector: bool = True, consumers: bool = True) -> None:
        """Run until SIGTERM or SIGINT; then finish what is in flight and hand over the rest.

        A second signal ends the process at once, as a kill would.
        The process is the hub's: what is loaded by now stays, and the garbage collector is told
        to leave it alone, or it would go through it again and again while messages pass.
        """
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGTERM, signal.SIGINT)

        def end() -> None:
            stop.set()
            for number in numbers:
                loop.remove_signal_handler(number)

        for number in numbers:
            loop.add_signal_handler(number, end)
        try:
            async with self.running(projector=projector, consumers=consumers):
                gc.collect()
                gc.freeze()
                await stop.wait()
        finally:
            gc.unfreeze()
            for number in numbers:
                loop.remove_signal_handler(number)

    async def drain(self, *, seconds: float = 30.0) -> None:
        """Wait until all committed events are sent and handled; for tests and demos.

        DEAD events, scheduled ones and those held by a pause do not count. Raises `TimeoutError`
        after *seconds*.
        """
        async with asyncio.timeout(seconds):
            while not await self._is_drained():
                if self.projector is not None:
                    self.projector.wake()
                await asyncio.sleep(0.01)

    async def _is_drained(self) -> bool:
        stats = await self.storage.outbox.stats(tenant_id=self.tenant_id)
        unsent = sum(stats.counts[status] for status in _UNSENT) - stats.scheduled
        if unsent - stats.parked > 0:
            return False
        if self.projector is not None and not self.projector.has_noticed(stats.operations):
            return False  # parked rows will move
        for consumer in self.consumers.values():
            if consumer.in_flight or await consumer.lag():
                return False
        # What was handled may have sent something new.
        again = await self.storage.outbox.stats(tenant_id=self.tenant_id)
        return (again.counts, again.parked) == (stats.counts, stats.parked)

    async def cleanup(self) -> Removed:
        """Delete finished rows that the retention does not keep."""
        removed = await cleanup(self.storage, self.retention)
        for table, number in asdict(removed).items():
            self.observer.count("cleanup_removed_total", number, table=table)
        return removed


def _tell(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _logger.error("the projector stopped: %s", describe(error))
