"""A shop that makes every kind of row: sent, waiting, failing, dead, blocked, parked, scheduled."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from semel import (
    Hub,
    IdempotencyMiddleware,
    InMemoryMessageBus,
    MessageEnvelope,
    SqlAlchemyStorage,
)
from semel.errors import PublishError
from semel.retry import RetryPolicy
from semel.settings import OutboxProjectorConfig
from semel.states import Answer, IdempotencyKey

CUSTOMERS = ("ada", "grace", "edsger", "barbara", "donald", "radia", "tony", "frances")
TENANTS = ("acme", "globex")
SECRET = "CANARY-7f3"


class ShopBus(InMemoryMessageBus):
    """Refuses what is wrong with a message, in a broker's own words."""

    def __init__(self) -> None:
        super().__init__()
        self.repaired = False

    def refusal(self, message: MessageEnvelope) -> PublishError | None:
        wrong = message.payload.get("wrong") if isinstance(message.payload, dict) else None
        if wrong is None or self.repaired:
            return None
        number = message.payload.get("order", 0)
        if wrong == "size":
            text = f"Message of {1_048_577 + number} bytes exceeds the limit of 1048576 bytes"
            return PublishError(text, kind="permanent")
        if wrong == "schema":
            text = (
                f"Schema 'order-v{number % 3}' rejected: field 'total' is missing (order {number})"
            )
            return PublishError(text, kind="permanent")
        return PublishError(f"NOT_ENOUGH_REPLICAS: 1 of 2 in sync for partition {number % 12}")

    async def publish_many(
        self, messages: Sequence[MessageEnvelope]
    ) -> Sequence[PublishError | None]:
        failed: dict[Any, PublishError] = {}
        passed: list[MessageEnvelope] = []
        outcomes: list[PublishError | None] = []
        for message in messages:
            key = (message.tenant_id, message.order_key or message.event_id)
            error = failed.get(key) or self.refusal(message)
            if error is None:
                passed.append(message)
            else:
                failed[key] = error
            outcomes.append(error)
        for message, error in zip(passed, await super().publish_many(passed), strict=True):
            outcomes[messages.index(message)] = error
        return outcomes


def make_hub(storage: SqlAlchemyStorage, bus: InMemoryMessageBus | None = None) -> Hub:
    """A shop whose orders lead to reservations, and these to invoices."""
    settings = OutboxProjectorConfig(
        lease_seconds=3.0,
        sweep_seconds=1.0,
        sleep_busy=0.02,
        sleep_idle=0.2,
        retry_base_seconds=20.0,
        retry_max_seconds=600.0,
        max_retry_attempts=1000,
    )
    hub = Hub("shop", storage=storage, bus=bus or ShopBus(), config=settings)
    quick = RetryPolicy(max_attempts=2, base_seconds=0.01, max_seconds=0.02)
    orders = hub.consumer("orders", retry=quick)

    @orders.on("OrderPlaced")
    async def reserve_stock(event: MessageEnvelope, uow: Any) -> None:
        if event.payload.get("stock") == "none":
            raise ValueError(f"no stock for item {event.payload['order']}")
        await uow.outbox.add(
            "stock", {"order": event.payload["order"]}, event_type="StockReserved", key=event.key
        )

    @hub.on("stock", "StockReserved")
    async def send_invoice(event: MessageEnvelope, uow: Any) -> None:
        await uow.outbox.add(
            "billing", {"order": event.payload["order"]}, event_type="InvoiceSent", key=event.key
        )

    return hub


async def place(
    hub: Hub, number: int, *, tenant: str = "acme", key: str | None = None, **more: Any
) -> str:
    """Commit one order; return the event's id."""
    topic, kind = more.pop("topic", "orders"), more.pop("type", "OrderPlaced")
    available = more.pop("available_at", None)
    async with hub.unit_of_work(tenant_id=tenant) as uow:
        row = await uow.outbox.add(
            topic,
            {"order": number, "total": 4200 + number, "card": f"{SECRET}-card", **more},
            event_type=kind,
            key=key,
            available_at=available,
            metadata={"correlation_id": f"req-{number}", "authorization": f"{SECRET}-header"},
        )
        await uow.commit()
        return row.id


async def call(hub: Hub, number: int, key: str, *, tenant: str = "acme") -> str:
    """Place an order by the shop's API, with an idempotency key; return the event's id."""

    async def post(_request: Request) -> PlainTextResponse:
        return PlainTextResponse(await place(hub, number, tenant=tenant, key="ada"))

    app = IdempotencyMiddleware(
        Starlette(routes=[Route("/checkout", post, methods=["POST"])]),
        storage=hub.storage,
        routes=["/checkout"],
        principal=lambda _: "app-1",
        tenant=lambda _: "acme",
    )
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop.test") as client:
        answer = await client.post("/checkout", headers={"Idempotency-Key": key})
    return answer.text


async def fill(hub: Hub, *, orders: int = 120, seed: int = 7) -> None:
    """Make some of everything; the hub runs."""
    chance = random.Random(seed)
    bus = hub.bus
    assert isinstance(bus, ShopBus)
    bus.faults.duplicate(every=9)
    await hub.storage.outbox.pause(topic="newsletter", reason="wait for legal", actor="grace")
    for number in range(orders):
        tenant = TENANTS[number % 2]
        key = chance.choice(CUSTOMERS)
        await place(hub, number, tenant=tenant, key=key)
    for number in range(18):
        await place(
            hub, number, key=f"big-{number % 5}", topic="exports", type="ReportBuilt", wrong="size"
        )
        await place(
            hub, number, tenant="globex", topic="orders", key=f"old-{number % 4}", wrong="schema"
        )
    for number in range(9):
        await place(
            hub,
            number,
            key=f"replica-{number}",
            topic="payments",
            type="PaymentTaken",
            wrong="replicas",
        )
        await place(
            hub,
            number,
            key=f"soon-{number}",
            topic="reminders",
            type="ReminderDue",
            available_at=datetime.now(UTC) + timedelta(hours=2),
        )
        await place(hub, number, tenant="globex", topic="newsletter", type="IssueReady")
    for number in range(3):
        await place(hub, 900 + number, key="empty-shelf", stock="none")
    for number in range(12):
        await keep_key(hub, number)
    await settle(hub)


async def keep_key(hub: Hub, number: int) -> IdempotencyKey:
    """Leave an idempotency key as a request does."""
    key = IdempotencyKey(
        tenant_id=TENANTS[number % 2],
        principal=f"app-{number % 3}",
        method="POST",
        route="/orders",
        key_hash=hashlib.sha256(f"key-{number}".encode()).hexdigest(),
        key_prefix=f"k{number:03d}",
    )
    store, day = hub.storage.idempotency, timedelta(hours=24)
    claim = await store.claim(key, fingerprint="f", lease=timedelta(minutes=1), keep=day)
    if number % 4:
        body = f'{{"card": "{SECRET}-answer"}}'.encode()
        await store.complete(claim, Answer(status_code=201, body=body), keep=day)
    return key


async def settle(hub: Hub, *, seconds: float = 60.0) -> None:
    """Wait until nothing moves any more: each row is sent, or has a reason not to be."""
    async with asyncio.timeout(seconds):
        last: Any = None
        while True:
            stats = await hub.storage.outbox.stats()
            lag = sum([await each.lag() or 0 for each in hub.consumers.values()])
            figures = (dict(stats.counts), stats.parked, stats.blocked_keys)
            if (
                figures == last
                and not lag
                and stats.counts["NEW"] <= stats.scheduled + stats.parked
            ):  # type: ignore[index]
                return
            last = figures
            await asyncio.sleep(0.3)
