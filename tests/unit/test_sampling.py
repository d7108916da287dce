"""The sampler: what it reads, how often, and that trouble stops nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from semel.errors import ConfigurationError, StorageError
from semel.observer import NullObserver
from semel.sampling import Sampler
from semel.testing import FakeClock


class Gauges(NullObserver):
    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def gauge(self, name: str, value: float, **labels: str) -> None:
        self.values[" ".join([name, *labels.values()])] = value


class Consumer:
    """What a sampler asks of a consumer."""

    name, topic, in_flight = "billing", "orders", 3

    def __init__(self, lag: int | None) -> None:
        self._lag = lag

    async def is_connected(self) -> bool:
        return True

    async def lag(self) -> int | None:
        return self._lag

    def oldest_running_seconds(self) -> float | None:
        return None


class Broken:
    """A store that is asked and does not answer."""

    def __init__(self) -> None:
        self.asked = 0

    async def stats(self) -> Any:
        self.asked += 1
        raise StorageError("postgresql://user:CANARY@host is away")


async def test_consumers_are_sampled() -> None:
    """Connection, lag, what is in flight, and how long it has been."""
    gauges = Gauges()
    await Sampler(gauges, consumers=lambda: [Consumer(17)]).sample()  # type: ignore[list-item]
    assert {
        "consumer_connected billing orders": 1.0,
        "consumer_in_flight billing orders": 3,
        "consumer_oldest_running_seconds billing orders": 0.0,
        "consumer_lag_messages billing orders": 17,
    } == gauges.values


async def test_a_lag_that_the_broker_cannot_tell_is_not_shown() -> None:
    gauges = Gauges()
    await Sampler(gauges, consumers=lambda: [Consumer(None)]).sample()  # type: ignore[list-item]
    assert "consumer_lag_messages billing orders" not in gauges.values


async def test_trouble_is_told_once_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The consumers are sampled all the same, and the outbox is asked again."""
    gauges, store, clock = Gauges(), Broken(), FakeClock()
    sampler = Sampler(
        gauges,
        outbox=store,  # type: ignore[arg-type]
        consumers=lambda: [Consumer(1)],  # type: ignore[list-item]
        seconds=15,
        clock=clock,
    )
    async with sampler.running():
        for asked in (1, 2, 3):
            async with asyncio.timeout(20):
                while store.asked < asked:
                    await asyncio.sleep(0)
            for _ in range(10):
                await asyncio.sleep(0)
            assert asked == store.asked
            clock.advance(15)
    assert 1 == gauges.values["consumer_connected billing orders"]
    assert "outbox_sampled_timestamp_seconds" not in gauges.values
    assert ["the outbox cannot be measured: StorageError: postgresql://***@host is away"] == (
        caplog.messages
    )


def test_seconds_must_be_positive() -> None:
    with pytest.raises(ConfigurationError, match="more than 0"):
        Sampler(NullObserver(), seconds=0)
