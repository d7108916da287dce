"""A look at a deployment: its settings, its broker and its database."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from semel.errors import describe
from semel.operations.findings import Finding, error, warning
from semel.sqlalchemy.doctor import examine_database

if TYPE_CHECKING:
    from semel.hub import Hub

_ANSWER_SECONDS = 10.0


async def examine_hub(hub: Hub, *, long_open: timedelta = timedelta(minutes=5)) -> list[Finding]:
    """Return what is wrong with *hub*, its broker and its database."""
    return [
        *examine_settings(hub),
        *await examine_bus(hub),
        *await examine_database(hub.storage, long_open=long_open),
    ]


def examine_settings(hub: Hub) -> Iterator[Finding]:
    """Yield settings under which a message can come again after the inbox forgot it."""
    window = hub.retention.inbox
    if window is None:
        return
    horizons = {
        "redelivery_horizon of the retention": hub.retention.redelivery_horizon,
        **{
            f"retries of the consumer of {topic}": timedelta(seconds=consumer.retry.horizon())
            for topic, consumer in hub.consumers.items()
        },
    }
    kept = getattr(hub.bus, "retention", None)
    if isinstance(kept, timedelta):
        horizons["retention of the bus"] = kept
    for name, horizon in horizons.items():
        if window <= horizon:
            yield error(
                "inbox-window",
                f"the inbox forgets messages after {_days(window)}, but they can come again for "
                f"{_days(horizon)} ({name}): effects could happen twice",
                f"Retention(inbox=...) of more than {_days(horizon)}",
            )
    sent = hub.retention.outbox_sent
    if sent is None or sent > window:
        long = "for ever" if sent is None else f"for {_days(sent)}"
        yield warning(
            "replay-window",
            f"sent events are kept {long} and can be replayed, but the inbox forgets after "
            f"{_days(window)}: a replay of older ones would take effect again",
            "keep sent events for a shorter time than the inbox, or replay only recent ones",
        )


async def examine_bus(hub: Hub) -> list[Finding]:
    """Return the trouble of the broker, if there is any."""
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            await hub.bus.start()
            await hub.bus.ping()
    except Exception as failure:  # noqa: BLE001  whatever it is, it is the finding
        return [
            error(
                "broker",
                f"the broker does not answer ({describe(failure)})",
                "events wait meanwhile and none is lost: bring it back, or correct its address",
            )
        ]
    finally:
        await asyncio.shield(_close(hub))
    return []


async def _close(hub: Hub) -> None:
    with suppress(Exception):  # it may never have been open
        await hub.bus.close()


def _days(span: timedelta) -> str:
    return f"{span.total_seconds() / 86_400:g} days"
