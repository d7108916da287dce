from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from semel.health import ConsumerHealthService


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds


class Consumer:
    connected = True
    is_paused = False
    running: float | None = None
    in_flight = 0

    async def is_connected(self) -> bool:
        return self.connected

    def oldest_running_seconds(self) -> float | None:
        return self.running

    async def lag(self) -> int | None:
        return 7


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def consumer() -> Consumer:
    return Consumer()


@pytest.fixture
def health(clock: Clock, consumer: Consumer) -> ConsumerHealthService:
    health = ConsumerHealthService(stuck_after=60, clock=clock)
    health.register_consumer("jobs", consumer)
    return health


async def test_an_idle_consumer_is_healthy(health: ConsumerHealthService, clock: Clock) -> None:
    """No message for a long time is no illness."""
    clock.seconds = 1_000_000
    info = (await health.check_health())["jobs"]
    assert (True, None, 0, True, 7) == (
        info.is_healthy,
        info.last_message_at,
        info.error_count,
        info.is_connected,
        info.lag,
    )


def test_more_than_five_errors_in_a_row(health: ConsumerHealthService) -> None:
    """Five errors are bad luck, the sixth is an illness, a success ends it."""
    for _ in range(5):
        health.record_error("jobs")
    assert health.get_health_status()["jobs"].is_healthy
    health.record_error("jobs")
    info = health.get_health_status()["jobs"]
    assert (False, 6, "6 errors in a row") == (info.is_healthy, info.error_count, info.reason)
    health.record_message_processed("jobs")
    assert health.get_health_status()["jobs"].is_healthy


def test_progress_is_noted(health: ConsumerHealthService, clock: Clock) -> None:
    """The time of the last message and its age are known."""
    clock.seconds = 10
    health.record_message_processed("jobs")
    clock.seconds = 25
    info = health.get_health_status()["jobs"]
    assert datetime(2026, 1, 1, 0, 0, 10, tzinfo=UTC) == info.last_message_at
    assert 15 == info.seconds_since_progress


async def test_a_lost_connection(health: ConsumerHealthService, consumer: Consumer) -> None:
    """The connection is really asked for."""
    consumer.connected = False
    info = (await health.check_health())["jobs"]
    assert (False, "not connected to the broker") == (info.is_healthy, info.reason)
    consumer.connected = True
    assert (await health.check_health())["jobs"].is_healthy


async def test_a_check_that_fails_is_an_answer(
    health: ConsumerHealthService, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer that cannot tell is not healthy."""

    def broken() -> bool:
        raise RuntimeError("no")

    monkeypatch.setattr(consumer, "is_connected", broken)
    info = (await health.check_health())["jobs"]
    assert (False, 1) == (info.is_healthy, info.error_count)


def test_a_stuck_handler(health: ConsumerHealthService, consumer: Consumer) -> None:
    """A handler that runs too long is an illness, however many others finish."""
    consumer.running = 60
    health.record_message_processed("jobs")
    assert health.get_health_status()["jobs"].is_healthy
    consumer.running = 61
    info = health.get_health_status()["jobs"]
    assert (False, "a handler has been running for 61 seconds") == (info.is_healthy, info.reason)


def test_a_consumer_that_rests(health: ConsumerHealthService, consumer: Consumer) -> None:
    """While the database does not answer the consumer is not healthy."""
    consumer.is_paused = True
    assert not health.get_health_status()["jobs"].is_healthy


async def test_a_consumer_of_the_users_own() -> None:
    """is_connected() is all that a consumer needs, sync or async; unknown names are ignored."""

    class Plain:
        def is_connected(self) -> bool:
            return True

    health = ConsumerHealthService()
    health.register_consumer("plain", Plain())
    health.record_error("nobody")
    health.record_message_processed("nobody")
    assert ["plain"] == list(await health.check_health())
    assert health.get_health_status()["plain"].is_healthy
