"""Faults on demand of the in-memory bus: a test that uses them must get what it asked for."""

import asyncio

import pytest

from semel.envelope import MessageEnvelope
from semel.errors import BusError, ConfigurationError, PublishError
from semel.testing.reader import Reader
from semel.transports.memory import InMemoryMessageBus


def message(**fields) -> MessageEnvelope:
    return MessageEnvelope(**{"topic": "orders", "payload": {"n": 1}, **fields})


def keyed(count: int, key: str = "k") -> list[MessageEnvelope]:
    return [message(key=key, event_id=f"{key}-{n}") for n in range(count)]


@pytest.fixture
async def bus():
    async with InMemoryMessageBus() as bus:
        yield bus


async def read(bus: InMemoryMessageBus, group: str = "group", prefetch: int = 100) -> Reader:
    return Reader(await bus.subscribe("orders", group=group, prefetch=prefetch))


async def test_outage(bus):
    """During an outage publishing and ping raise, and deliveries stop; afterwards all goes on."""
    async with await read(bus) as reader:
        bus.faults.outage = True
        with pytest.raises(BusError, match="unreachable"):
            await bus.publish_many([message()])
        with pytest.raises(PublishError) as caught:
            await bus.publish(message())
        assert caught.value.kind == "destination"
        with pytest.raises(BusError):
            await bus.ping()
        with pytest.raises(BusError):
            await bus.subscribe("orders", group="other")
        assert not reader.subscription.is_connected()
        assert [] == bus.published
        bus.faults.outage = False
        await bus.ping()
        await bus.publish_many(keyed(1))
        assert ["k-0"] == [m.event_id for m in await reader.messages(1)]


async def test_outage_stops_deliveries(bus):
    """What was published before the outage is delivered after it."""
    await bus.publish_many(keyed(1))
    async with await read(bus) as reader:
        bus.faults.outage = True
        assert await reader.silent(0.02)
        bus.faults.clear()
        assert ["k-0"] == [m.event_id for m in await reader.messages(1)]


@pytest.mark.parametrize("kind", ["transient", "permanent", "destination", "unknown"])
async def test_reject(bus, kind):
    """A rejected message is not delivered and has the kind that was asked for."""
    fault = bus.faults.reject(lambda m: m.event_id == "k-1", kind=kind, times=1)
    results = await bus.publish_many([*keyed(3), message(event_id="free")])
    assert [None, kind, kind, None] == [r and r.kind for r in results]
    assert ["k-0", "free"] == bus.published_ids()
    assert fault.hits == 1
    assert [None, None] == list(await bus.publish_many(keyed(3)[1:]))


async def test_reject_at_random():
    """A ratio strikes by chance, and the same seed strikes the same messages."""
    seen = []
    for seed in (7, 7, 8):
        async with InMemoryMessageBus(seed=seed) as bus:
            fault = bus.faults.reject(ratio=0.1)
            results = await bus.publish_many([message() for _ in range(500)])
            assert 20 < fault.hits < 90
            assert fault.hits == sum(r is not None for r in results)
            seen.append([r is not None for r in results])
    assert seen[0] == seen[1]
    assert seen[0] != seen[2]


async def test_lose_confirmation(bus):
    """The message arrives, its outcome is unknown, and its key waits."""
    bus.faults.lose_confirmation(times=1)
    results = await bus.publish_many(keyed(2))
    assert ["unknown", "unknown"] == [r.kind for r in results]
    assert ["k-0"] == bus.published_ids()


async def test_duplicate(bus):
    """Every third message comes twice, the copy before what follows of its key."""
    bus.faults.duplicate(every=3)
    async with await read(bus) as reader:
        await bus.publish_many(keyed(4))
        received = [m.event_id for m in await reader.messages(5)]
    assert ["k-0", "k-1", "k-2", "k-2", "k-3"] == received
    assert ["k-0", "k-1", "k-2", "k-3"] == bus.published_ids()


async def test_cut_batch(bus):
    """A connection lost in mid-batch raises; what was sent before it has arrived."""
    bus.faults.cut_batch(after=2)
    async with await read(bus) as reader:
        with pytest.raises(BusError, match="mid-batch"):
            await bus.publish_many(keyed(4))
        assert ["k-0", "k-1"] == [m.event_id for m in await reader.messages(2)]
        assert not any(await bus.publish_many(keyed(4)[2:]))


async def test_delay(bus):
    """A slow broker takes its time, and an outage in the meantime loses the batch."""
    bus.faults.delay = 0.05
    sending = asyncio.create_task(bus.publish_many(keyed(1)))
    await asyncio.sleep(0)
    assert not sending.done()
    assert [None] == list(await sending)
    sending = asyncio.create_task(bus.publish_many(keyed(1)))
    await asyncio.sleep(0)
    bus.faults.outage = True
    with pytest.raises(BusError):
        await sending
    assert len(bus.published) == 1


async def test_clear(bus):
    """All faults end at once."""
    bus.faults.reject()
    bus.faults.lose_confirmation()
    bus.faults.duplicate()
    bus.faults.cut_batch(after=0)
    bus.faults.delay = 60.0
    bus.faults.outage = True
    bus.faults.clear()
    async with asyncio.timeout(5):
        assert [None] == list(await bus.publish_many(keyed(1)))


@pytest.mark.parametrize("options", [{"ratio": 1.5}, {"ratio": -0.1}, {"every": 0}])
async def test_bad_fault(bus, options):
    """A fault that could never or always strike by mistake is refused."""
    with pytest.raises(ConfigurationError, match="ratio"):
        bus.faults.reject(**options)
