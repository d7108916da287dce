"""The in-memory bus: the contract of all buses, and what only it promises."""

import asyncio

import pytest

from semel.envelope import MessageEnvelope
from semel.errors import BusError, ConfigurationError, PublishError
from semel.testing.contracts import MessageBusContract
from semel.testing.reader import Reader
from semel.transports.memory import InMemoryMessageBus
from semel.wire import decode


class TestContract(MessageBusContract):
    survives_restart = True  # of the bus; not of the process
    breaks_keys = True
    quiet_seconds = 0.05

    @pytest.fixture
    async def bus(self):
        async with InMemoryMessageBus() as bus:
            yield bus

    async def break_key(self, bus, topic, key):
        bad = message(topic=topic, key=key)
        bus.faults.reject(lambda m: m.event_id == bad.event_id, kind="permanent")
        return bad


class TestStructuredContract(TestContract):
    """The same promises hold for structured messages, except that headers say less."""

    @pytest.fixture
    async def bus(self):
        async with InMemoryMessageBus(mode="structured") as bus:
            yield bus

    async def test_cloudevents_headers(self, bus, topic):
        """A structured message says so, and still has a message_id."""
        sent = message(topic=topic)
        await bus.publish(sent)
        headers = bus.published[0].headers
        assert headers["content-type"] == "application/cloudevents+json"
        assert sent.event_id == headers["message_id"]


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


# Life


async def test_starts_on_first_use():
    """A bus need not be started by hand."""
    bus = InMemoryMessageBus()
    await bus.publish(message(event_id="1"))
    assert ["1"] == bus.published_ids()
    await bus.close()


async def test_closed_before_it_was_started():
    """A bus that was closed before its first use stays closed."""
    bus = InMemoryMessageBus()
    await bus.close()
    with pytest.raises(BusError, match="closed"):
        await bus.publish_many([message()])
    with pytest.raises(BusError, match="closed"):
        await bus.subscribe("orders", group="g")
    with pytest.raises(BusError, match="closed"):
        await bus.ping()


def test_refuses_another_event_loop():
    """A bus that is in use in one event loop says so in another one, whatever is called."""
    bus = InMemoryMessageBus()
    asyncio.run(bus.start())
    for call in (
        bus.start,
        bus.close,
        bus.ping,
        lambda: bus.publish(message()),
        lambda: bus.publish_many([message()]),
        lambda: bus.subscribe("orders", group="g"),
    ):
        with pytest.raises(ConfigurationError, match="another event loop"):
            asyncio.run(call())


def test_moves_to_another_event_loop_once_closed():
    """A closed bus may start again elsewhere."""
    bus = InMemoryMessageBus()

    async def use(event_id: str) -> None:
        async with bus:
            await bus.publish(message(event_id=event_id))

    asyncio.run(use("1"))
    asyncio.run(use("2"))
    assert ["1", "2"] == bus.published_ids()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"retention": -1}, "retention"),
        ({"mode": "xml"}, "binary, structured, raw"),
        ({"modes": {"orders": "xml"}}, "binary, structured, raw"),
        ({"source": "a\nb"}, "source"),
    ],
)
async def test_bad_options(options, text):
    """Wrong settings are refused when the bus is made, with what to choose."""
    with pytest.raises(ConfigurationError, match=text):
        InMemoryMessageBus(**options)


async def test_bad_subscription(bus):
    """A bad topic, group or prefetch raises at once."""
    for topic, group, prefetch in (("", "g", 1), ("orders", "a\x00", 1), ("orders", "g", 0)):
        with pytest.raises((ConfigurationError, ValueError)):
            await bus.subscribe(topic, group=group, prefetch=prefetch)


# Messages


async def test_source_and_modes(bus):
    """The name of the bus is the source, and each topic may have its mode."""
    bus = InMemoryMessageBus(modes={"raw": "raw", "doc": "structured"})
    bus.source = "shop"
    await bus.publish_many([message(), message(topic="raw"), message(topic="doc")])
    binary, raw, structured = bus.published
    assert binary.headers["ce_source"] == "shop"
    assert {"message_id", "content-type"} == set(raw.headers)
    assert structured.headers["content-type"] == "application/cloudevents+json"
    assert decode(structured).source == "shop"
    await bus.close()


async def test_unencodable_message_fails_alone(bus):
    """A message that cannot be encoded is refused for good, with what follows of its key."""
    bad = message(payload=object(), key="bad")
    results = await bus.publish_many([message(event_id="1"), bad, message(key="bad")])
    assert results[0] is None
    assert results[1].kind == "permanent"
    assert results[2] is results[1]
    assert ["1"] == bus.published_ids()


async def test_message_before_an_unencodable_one_is_sent(bus):
    """What stands before a refused message of its key is sent, and is not blamed."""
    bad = message(payload=object(), key="k")
    results = await bus.publish_many([message(key="k", event_id="1"), bad, message(key="k")])
    assert results[0] is None
    assert results[1].kind == "permanent"
    assert results[2] is results[1]
    assert ["1"] == bus.published_ids()


async def test_keys_of_tenants_are_separate(bus):
    """A failure of one tenant's key does not stop the same key of another tenant."""
    bus.faults.reject(times=1)
    results = await bus.publish_many([message(key="k"), message(key="k", tenant_id="other")])
    assert isinstance(results[0], PublishError)
    assert results[1] is None


async def test_keyless_messages_fail_alone(bus):
    """A failed message without a key stops nobody."""
    bus.faults.reject(times=1)
    results = await bus.publish_many([message(), message()])
    assert isinstance(results[0], PublishError)
    assert results[1] is None


async def test_groups_cannot_write_into_messages(bus):
    """Headers that all groups share are read-only."""
    async with await read(bus) as reader:
        await bus.publish(message())
        (delivery,) = await reader.take()
        with pytest.raises(TypeError):
            delivery.wire.headers["message_id"] = "other"


async def test_retention():
    """A new group gets the last *retention* messages; an existing one loses nothing."""
    async with InMemoryMessageBus(retention=2) as bus:
        early = await read(bus, "early")
        await bus.publish_many(keyed(4))
        late = await read(bus, "late")
        async with early, late:
            assert ["k-0", "k-1", "k-2", "k-3"] == [m.event_id for m in await early.messages(4)]
            assert ["k-2", "k-3"] == [m.event_id for m in await late.messages(2)]
        assert ["k-2", "k-3"] == bus.published_ids()


async def test_from_now_on():
    """With from_beginning=False a new group gets only what comes after it."""
    async with InMemoryMessageBus(from_beginning=False) as bus:
        await bus.publish_many(keyed(1))
        async with await read(bus) as reader:
            await bus.publish_many(keyed(1, "later"))
            assert ["later-0"] == [m.event_id for m in await reader.messages(1)]
            assert await reader.silent(0.01)


async def test_published_ids_by_topic(bus):
    """Assertions can ask for one topic or for all."""
    await bus.publish_many([message(event_id="1"), message(event_id="2", topic="other")])
    assert ["1", "2"] == bus.published_ids()
    assert ["2"] == bus.published_ids("other")


# Order and redelivery


async def test_key_stays_with_its_member(bus):
    """While a member holds a message of a key, later ones go to it, not to an idle member."""
    busy, idle = await read(bus), await read(bus)
    async with busy, idle:
        await bus.publish_many(keyed(1))
        owner, other = (idle, busy) if await busy.silent(0.05) else (busy, idle)
        (held,) = await owner.take()
        await bus.publish_many([message(key="k", event_id="later")])
        assert await other.silent(0.05)
        assert ["later"] == [m.event_id for m in await owner.messages(1)]
        await held.ack()


async def test_freed_key_goes_to_anybody(bus):
    """Once everything of a key is acked, another member may have the next."""
    first = await read(bus, prefetch=1)
    async with first:
        await bus.publish_many(keyed(2))
        (held,) = await first.take()
        second = await read(bus, prefetch=1)
        async with second:
            assert await second.silent(0.02)
            await first.subscription.close()
            assert ["k-0", "k-1"] == [m.event_id for m in await second.messages(2)]
            with pytest.raises(BusError, match="went back"):
                await held.ack()


async def test_delayed_nack_holds_its_key(bus):
    """What follows of a key waits for a nacked message; other keys go on."""
    async with await read(bus, prefetch=1) as reader:
        await bus.publish_many([*keyed(2), *keyed(1, "other")])
        (first,) = await reader.take()
        await first.nack(delay=0.1)
        assert ["other-0", "k-0", "k-1"] == [m.event_id for m in await reader.messages(3)]


async def test_nacks_return_to_their_place(bus):
    """Messages nacked in any order come again in the order of the key."""
    async with await read(bus) as reader:
        await bus.publish_many(keyed(3))
        held = await reader.take(3)
        for delivery in (held[2], held[0], held[1]):
            await delivery.nack(delay=0.02)
        again = await reader.take(3)
        assert ["k-0", "k-1", "k-2"] == [d.wire.headers["message_id"] for d in again]
        assert [2, 2, 2] == [d.attempt for d in again]


async def test_settled_once(bus):
    """A second ack or nack is an error, also after the message came again."""
    async with await read(bus) as reader:
        await bus.publish_many(keyed(1))
        (first,) = await reader.take()
        await first.nack()
        (second,) = await reader.take()
        with pytest.raises(BusError, match="before"):
            await first.ack()
        await second.ack()
        with pytest.raises(BusError, match="before"):
            await second.nack()


async def test_lag_counts_until_acked(bus):
    """What is delivered but not acked still counts."""
    async with await read(bus) as reader:
        await bus.publish_many(keyed(3))
        (first, *_) = await reader.take(3)
        assert await reader.subscription.lag() == 3
        await first.ack()
        assert await reader.subscription.lag() == 2


async def test_forgets_what_is_done(bus):
    """A group keeps nothing of acked messages."""
    async with await read(bus) as reader:
        await bus.publish_many([message(key=f"k{n % 7}") for n in range(500)] + [message()])
        await reader.messages(501)
        group = bus._groups["orders"]["group"]
        assert ({}, 0) == (group._lanes, group.size)
        assert not reader.subscription.held or group.take(reader.subscription) is None


async def test_other_tasks_get_their_turn(bus):
    """A consumer that never waits does not stop the event loop."""
    await bus.publish_many([message() for _ in range(200)])
    turns = 0

    async def tick() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    ticker = asyncio.create_task(tick())
    subscription = await bus.subscribe("orders", group="g")
    count = 0
    async for delivery in subscription:
        await delivery.ack()
        count += 1
        if count == 200:
            break
    ticker.cancel()
    assert turns >= 3
