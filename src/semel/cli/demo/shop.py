"""The demo's shop: orders, reservations of stock, and the handler between them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from semel.cli.demo.trouble import TroubledBus
from semel.envelope import MessageEnvelope
from semel.hub import Hub
from semel.retry import RetryPolicy
from semel.settings import OutboxProjectorConfig
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.sqlalchemy.uow import SQLAlchemyUnitOfWork
from semel.transports.database import DatabaseMessageBus

FOLDER = "SEMEL_DEMO_FOLDER"
TOPIC = "orders"
LEASE_SECONDS = 2.0
_FAILS_FIRST = 40


class Shop(DeclarativeBase):
    """The service's own tables."""


class Order(Shop):
    """What a customer ordered; `version` counts the customer's orders."""

    __tablename__ = "demo_order"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    customer: Mapped[str] = mapped_column(String(40))
    version: Mapped[int]


class Reservation(Shop):
    """The effect of an order: one row each time that the handler's work was committed."""

    __tablename__ = "demo_reservation"

    number: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[str] = mapped_column(String(40))
    customer: Mapped[str] = mapped_column(String(40))
    version: Mapped[int]


def make_storage(folder: Path) -> SqlAlchemyStorage:
    """Return the storage on the demo's one file."""
    return SqlAlchemyStorage(f"sqlite+aiosqlite:///{folder / 'shop.db'}")


def make_hub(folder: Path) -> Hub:
    """Return the hub that the workers run."""
    storage = make_storage(folder)
    bus = TroubledBus(DatabaseMessageBus(storage, lease_seconds=LEASE_SECONDS), folder)
    config = OutboxProjectorConfig(
        batch_size=25,
        lease_seconds=LEASE_SECONDS,
        breaker_max_seconds=1.0,
        sleep_idle=0.5,
    )
    hub = Hub("demo", storage=storage, bus=bus, config=config)
    consumer = hub.consumer(
        TOPIC, retry=RetryPolicy(max_attempts=5, base_seconds=0.1), concurrency=4
    )
    failed: set[str] = set()

    @consumer.on("OrderPlaced")
    async def reserve(event: MessageEnvelope, uow: SQLAlchemyUnitOfWork) -> None:
        order = event.payload
        uow.session.add(
            Reservation(
                order_id=order["order_id"], customer=order["customer"], version=order["version"]
            )
        )
        await uow.session.flush()
        if order["number"] % _FAILS_FIRST == 0 and event.event_id not in failed:
            failed.add(event.event_id)
            raise RuntimeError("the warehouse is not ready yet")
        if (folder / "kill-consumer").exists():
            # After the work, before the commit.
            (folder / "kill-consumer").unlink(missing_ok=True)
            os.kill(os.getpid(), signal.SIGKILL)

    return hub
