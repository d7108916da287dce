"""A projector or a consumer as a process of its own: `python broker_worker.py '{...}'`."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from typing import Any

from sqlalchemy import String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from semel import (
    Hub,
    MessageBus,
    OutboxProjectorConfig,
    RetryPolicy,
    SqlAlchemyStorage,
    SQLAlchemyUnitOfWork,
    bus_from_url,
)

DEATH = 77  # the exit status of a consumer that handled poison


class Base(DeclarativeBase):
    """The tables of the workload."""


class Effect(Base):
    """One row each time that a consumer's handling of an event was committed."""

    __tablename__ = "effects"

    number: Mapped[int] = mapped_column(primary_key=True)
    consumer: Mapped[str] = mapped_column(String(40))
    key: Mapped[str] = mapped_column(String(40))
    version: Mapped[int]


def make_bus(url: str, storage: SqlAlchemyStorage, options: dict[str, Any]) -> MessageBus:
    """Return the bus under test."""
    if url.startswith("database:"):
        options = {"storage": storage, **options}
    return bus_from_url(url, **options)


def make_hub(settings: dict[str, Any]) -> Hub:
    """Return the hub that a worker runs."""
    storage = SqlAlchemyStorage(settings["database"])
    hub = Hub(
        settings["group"],
        storage=storage,
        bus=make_bus(settings["bus"], storage, settings["options"]),
        config=OutboxProjectorConfig(
            batch_size=200,
            lease_seconds=3,
            breaker_max_seconds=1,
            publish_timeout_seconds=10,
            sleep_idle=0.5,
        ),
    )
    consumer = hub.consumer(
        settings["topic"],
        batch_size=50,
        retry=RetryPolicy(max_attempts=settings["attempts"], base_seconds=0.05, max_seconds=1),
    )

    @consumer.on("Appended")
    async def append(payload: dict, uow: SQLAlchemyUnitOfWork) -> None:  # type: ignore[type-arg]
        if payload["key"] == settings["poison"]:
            os._exit(DEATH)
        uow.session.add(
            Effect(consumer=settings["group"], key=payload["key"], version=payload["version"])
        )

    return hub


async def main() -> None:
    """Run until SIGTERM."""
    settings = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    hub = make_hub(settings)
    projects = settings["role"] == "projector"
    await hub.run_forever(projector=projects, consumers=not projects)


if __name__ == "__main__":
    asyncio.run(main())
