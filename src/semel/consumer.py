"""Broker to handlers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import count
from typing import Any, Self, TypeVar

from semel.binding import Binding, Handler, takes_second
from semel.clock import SystemClock
from semel.dead_letters import dead_letter_topic as default_topic
from semel.dispatch import Dispatcher
from semel.envelope import MessageEnvelope, check_name, check_tenant
from semel.errors import ConfigurationError, describe
from semel.handling import TROUBLE, Handling, Plan
from semel.health import ConsumerHealthService
from semel.observer import NullObserver, system_of
from semel.processing import Outcome, Processor
from semel.protocols import (
    Clock,
    Delivery,
    MessageBus,
    Observer,
    Serializer,
    Storage,
    Subscription,
    UnitOfWork,
)
from semel.retry import RetryPolicy
from semel.routing import Router
from semel.serializers import Serializers, Upcasters

H = TypeVar("H", bound=Handler)

_logger = logging.getLogger("semel.consumer")
_ANSWER_SECONDS = 10.0


class EventConsumer:
    """Takes the messages of one topic to the handlers of their types, each exactly once.

    Instances with the same *name* and *group_id* share the work. Messages of one key run in
    order, up to *concurrency* keys at the same time; *batch_size* above 1 lets messages share
    transactions. A message that fails is tried again as *retry* says, then goes to
    *dead_letter_topic* (`<topic>.dead`). A type without a handler is parked there too, unless
    *ignore_unknown* is set. *tenants* limits whose messages are accepted. *serializers* decode
    what is no JSON, the storage's own by default; *upcasters* bring payloads to the newest version.

    >>> consumer = EventConsumer("billing", "orders", bus=bus, storage=storage)  # doctest: +SKIP
    >>> @consumer.on("OrderPlaced")                                              # doctest: +SKIP
    ... async def invoice(message: MessageEnvelope, uow: UnitOfWork) -> None: ...
    """

    # A subclass may set these instead of passing them.
    name: str = ""
    topic: str = ""
    group_id: str = ""

    def __init__(
        self,
        name: str | None = None,
        topic: str | None = None,
        group_id: str | None = None,
        *,
        bus: MessageBus,
        storage: Storage,
        concurrency: int = 8,
        prefetch: int = 100,
        batch_size: int = 1,
        retry: RetryPolicy | None = None,
        ignore_unknown: bool = False,
        dead_letter_topic: str | None = None,
        tenants: Collection[str] | None = None,
        keep_payload: bool = False,
        serializers: Iterable[Serializer] | None = None,
        upcasters: Upcasters | None = None,
        observer: Observer | None = None,
        health: ConsumerHealthService | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.name = check_name("the consumer's name", name or self.name or None)
        self.topic = check_name("the consumer's topic", topic or self.topic or None)
        self.group_id = check_name("group_id", group_id or self.group_id or self.name)
        if min(concurrency, prefetch, batch_size) < 1:
            raise ConfigurationError("concurrency, prefetch and batch_size must be at least 1")
        self.dead_letter_topic = check_name(
            "dead_letter_topic", dead_letter_topic or default_topic(self.topic)
        )
        self._log = logging.LoggerAdapter(_logger, {"consumer": self.name, "topic": self.topic})
        self.retry = retry or RetryPolicy()
        self._bus = bus
        self._storage = storage
        self._limits = {
            "concurrency": concurrency,
            "prefetch": prefetch,
            "batch_size": batch_size,
        }
        self._takes_all = type(self).handle is not EventConsumer.handle
        self._handle_takes_uow = takes_second(self.handle)
        self._router = Router(
            name=self.name,
            ignore_unknown=ignore_unknown,
            tenants=None if tenants is None else frozenset(map(check_tenant, tenants)),
            takes_all=self._takes_all,
            serializers=Serializers(_own(storage) if serializers is None else serializers),
        )
        self._upcasters = upcasters or Upcasters()
        self._clock = clock or SystemClock()
        self._health: ConsumerHealthService | None = None
        self._label = self.name
        if health is not None:
            self.watch(health)
        self._processor = Processor(
            storage,
            self.name,
            observer=observer or NullObserver(),
            clock=self._clock,
            dead_letter_topic=self.dead_letter_topic,
            labels={"transport": system_of(bus), "group": self.group_id},
        )
        self._handling = Handling(
            storage,
            self._processor,
            Plan(
                name=self.name,
                dead_letter_topic=self.dead_letter_topic,
                retry=self.retry,
                keep_payload=keep_payload,
                run=self._handle,
                handler_name=self._handler_name,
                on_processed=self._processed,
                on_error=self._error,
                on_outage=self._check_storage,
            ),
        )
        self._stop = asyncio.Event()
        self._subscription: Subscription | None = None
        self._dispatcher: Dispatcher | None = None
        self._runner: asyncio.Task[None] | None = None
        self._probe: asyncio.Task[None] | None = None
        self._drain_seconds = 30.0

    def on(self, event_type: str) -> Callable[[H], H]:
        """Register a handler `(message)` or `(message, uow)` for *event_type*.

        Its first parameter's annotation decides what it receives: the envelope, the payload as a
        `dict`, or a dataclass, pydantic model or msgspec struct made and validated from it.
        All handlers of a type run in one transaction, in the order of their registration.
        """

        def register(handler: H) -> H:
            self._router.add(event_type, handler)
            return handler

        return register

    @property
    def handlers(self) -> Mapping[str, Sequence[Binding]]:
        """What is registered, by type of event."""
        return self._router.bindings

    def watch(self, health: ConsumerHealthService, label: str | None = None) -> None:
        """Report to *health* as *label*, which is the consumer's name unless told."""
        self._health = health
        self._label = label or self.name
        health.register_consumer(self._label, self)

    async def handle(self, event: MessageEnvelope, uow: UnitOfWork) -> None:
        """Run the registered handlers; override it to take every message, whatever its type."""
        await self._router.run(event, uow)

    async def start(self) -> None:
        """Subscribe and begin. A broker that is down is tried again and again. Idempotent."""
        if self._runner is not None and not self._runner.done():
            return
        if not self._router:
            raise ConfigurationError(
                f"consumer {self.name!r} has no handler: register one with @consumer.on(...), "
                "or override handle()"
            )
        self._stop = asyncio.Event()
        subscription: Subscription | None = None
        try:
            subscription = await self._subscribe()
        except ConfigurationError:
            raise
        except Exception as error:  # noqa: BLE001  the broker may come later
            self._log.warning("%s: cannot subscribe yet: %s", self.name, describe(error))
        self._runner = asyncio.create_task(self._run(subscription), name=f"semel-{self.name}")

    async def stop(self, *, drain_seconds: float = 30.0) -> None:
        """Finish what is running and hand back the rest.

        What still runs after *drain_seconds* is cancelled, undone and handed back too. Idempotent.
        """
        self._drain_seconds = drain_seconds
        self._stop.set()
        runner = self._runner
        if runner is not None:
            await asyncio.wait({runner})
            self._runner = None
            if not runner.cancelled() and (error := runner.exception()) is not None:
                raise error

    @property
    def is_running(self) -> bool:
        """Tell whether it was started and its loop is alive."""
        return self._runner is not None and not self._runner.done()

    async def is_connected(self) -> bool:
        """Tell whether the broker is connected and may deliver."""
        return self._subscription is not None and self._subscription.is_connected()

    async def lag(self) -> int | None:
        """Return how many messages wait for this group; None where that is not known."""
        return None if self._subscription is None else await self._subscription.lag()

    @property
    def in_flight(self) -> int:
        """How many messages were taken from the broker and are not acknowledged."""
        return 0 if self._dispatcher is None else self._dispatcher.held

    @property
    def processed(self) -> int:
        """How many messages were processed for the first time, by this object."""
        return self._processor.outcomes[Outcome.PROCESSED]

    @property
    def duplicates(self) -> int:
        """How many messages were skipped because the inbox knew them, by this object."""
        return self._processor.outcomes[Outcome.DUPLICATE]

    @property
    def is_paused(self) -> bool:
        """Tell whether consumption rests because the database does not answer."""
        return self._dispatcher is not None and self._dispatcher.is_paused

    def oldest_running_seconds(self) -> float | None:
        """For how long the oldest of the running handlers has been at it."""
        return None if self._dispatcher is None else self._dispatcher.oldest_running_seconds()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _subscribe(self) -> Subscription:
        await self._bus.start()
        self._subscription = await self._bus.subscribe(
            self.topic, group=self.group_id, prefetch=self._limits["prefetch"]
        )
        return self._subscription

    async def _run(self, subscription: Subscription | None) -> None:
        failures = 0
        while not self._stop.is_set():
            if subscription is not None:
                await self._consume(subscription)
                subscription, failures = None, 0
                continue
            failures += 1
            await self._rest(TROUBLE.delay(failures))
            try:
                subscription = None if self._stop.is_set() else await self._subscribe()
            except Exception as error:  # noqa: BLE001  the broker may come back
                self._log.warning("%s: cannot subscribe: %s", self.name, describe(error))
        if subscription is not None:
            # Stopped before it began.
            await self._unsubscribe(subscription)

    async def _unsubscribe(self, subscription: Subscription) -> None:
        try:
            await subscription.close()
        except Exception as error:  # noqa: BLE001  the broker takes back what it lost
            self._log.warning("%s: closing failed: %s", self.name, describe(error))
        self._subscription = None

    async def _consume(self, subscription: Subscription) -> None:
        dispatcher = self._dispatcher = Dispatcher(
            self._handling.work, clock=self._clock, **self._limits
        )
        reader = asyncio.create_task(self._read(subscription, dispatcher))
        stopped = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({reader, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            reader.cancel()
            stopped.cancel()
            await asyncio.gather(reader, stopped, return_exceptions=True)
            await dispatcher.stop(timeout=self._drain_seconds)
            if self._probe is not None:
                self._probe.cancel()
            await self._unsubscribe(subscription)
            self._dispatcher = self._probe = None

    async def _read(self, subscription: Subscription, dispatcher: Dispatcher) -> None:
        try:
            async for delivery in subscription:
                if self._router.serializers.must_prepare:
                    await self._prepare(delivery)
                await dispatcher.put(self._router.judge(delivery))
        except Exception as error:  # noqa: BLE001  whatever it is, we subscribe again
            self._log.warning("%s: the subscription broke: %s", self.name, describe(error))
            self._error()

    async def _prepare(self, delivery: Delivery) -> None:
        # Whoever has the schemas may be away: that is not the message's fault, it waits.
        for number in count(1):
            try:
                await self._router.prepare(delivery)
                break
            except Exception as error:  # noqa: BLE001  whatever it is, nothing can be decoded
                self._log.warning("%s: a schema cannot be had yet: %s", self.name, describe(error))
            await self._clock.sleep(max(0.05, TROUBLE.delay(number)))

    async def _rest(self, seconds: float) -> None:
        sleeper = asyncio.create_task(self._clock.sleep(seconds))
        stopped = asyncio.create_task(self._stop.wait())
        await asyncio.wait({sleeper, stopped}, return_when=asyncio.FIRST_COMPLETED)
        sleeper.cancel()
        stopped.cancel()

    async def _handle(self, message: MessageEnvelope, uow: UnitOfWork) -> None:
        handle: Any = self.handle
        message = self._upcasters.apply(message)
        await (handle(message, uow) if self._handle_takes_uow else handle(message))

    def _handler_name(self, event_type: str) -> str | None:
        if self._takes_all:
            return type(self).__qualname__[:255]
        return self._router.handler_name(event_type)

    def _processed(self) -> None:
        if self._health is not None:
            self._health.record_message_processed(self._label)

    def _error(self) -> None:
        if self._health is not None:
            self._health.record_error(self._label)

    async def _check_storage(self) -> None:
        dispatcher = self._dispatcher
        if dispatcher is None or dispatcher.is_paused or await self._storage_answers():
            return
        if not dispatcher.is_paused:
            dispatcher.pause()
            self._log.error("%s: the database does not answer: consumption rests", self.name)
            self._probe = asyncio.create_task(self._until_storage_answers(dispatcher))

    async def _until_storage_answers(self, dispatcher: Dispatcher) -> None:
        for number in count(1):
            await self._clock.sleep(max(0.05, TROUBLE.delay(number)))
            if await self._storage_answers():
                self._log.warning("%s: the database answers again", self.name)
                dispatcher.resume()
                return

    async def _storage_answers(self) -> bool:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await self._storage.ping()
        except Exception:  # noqa: BLE001  the reason was told by what failed before
            return False
        return True


def _own(storage: Storage) -> tuple[Serializer, ...]:
    serializer: Serializer | None = getattr(storage, "serializer", None)
    return () if serializer is None else (serializer,)
