"""Redis Streams: the contract of all buses on a real server, and what only it promises."""

import asyncio
import re
from pathlib import Path
from uuid import uuid4

import pytest
from redis.asyncio import Redis

from semel.envelope import MessageEnvelope
from semel.errors import BusError, ConfigurationError, WireError
from semel.testing.contracts import MessageBusContract
from semel.testing.contracts.harness import by_key, ids, message
from semel.testing.reader import Reader
from semel.transports.redis import ERRORS, RedisMessageBus
from semel.wire import decode

pytestmark = pytest.mark.redis

PAGE = Path(__file__).parents[2] / "docs/transports/redis.md"


@pytest.fixture
async def client(service):
    async with Redis.from_url(service("redis")) as client:
        yield client


@pytest.fixture
async def prefix(client):
    """A prefix for keys that is free; the keys are gone afterwards."""
    name = f"test-{uuid4().hex[:12]}"
    yield name
    keys = [key async for key in client.scan_iter(f"{name}:*", count=1000)]
    if keys:
        await client.delete(*keys)


@pytest.fixture
async def bus(service, prefix):
    async with RedisMessageBus(
        service("redis"), key_prefix=prefix, claim_after=2, max_bytes=2**20, maxlen=None
    ) as bus:
        yield bus


async def read(bus, group="group", prefetch=100) -> Reader:
    return Reader(await bus.subscribe("orders", group=group, prefetch=prefetch))


def keyed(count, key="k"):
    return [message("orders", key=key, payload=n, event_id=f"{key}{n}") for n in range(count)]


async def length(bus, client) -> int:
    return sum([await client.xlen(bus.stream("orders", n)) for n in range(16)])


class TestContract(MessageBusContract):
    survives_restart = True
    breaks_keys = True

    async def break_key(self, bus, topic, key):
        return MessageEnvelope(topic=topic, key=key, body=b"x" * (2**20 + 1))


# The wire


async def test_plain_client_reads(bus, client):
    """A consumer without this library finds CloudEvents fields and the body as it is."""
    await bus.publish(message("orders", body=b'{"n": 1}', event_id="1", key="k"))
    streams = {bus.stream("orders", n): "0" for n in range(16)}
    ((_, ((_, fields),)),) = await client.execute_command(
        "XREAD", "STREAMS", *streams, *streams.values()
    )
    assert fields[b"data"] == b'{"n": 1}'
    assert fields[b"ce_id"] == fields[b"message_id"] == b"1"
    assert fields[b"ce_specversion"] == b"1.0"
    assert fields[b"content-type"] == b"application/json"


async def test_foreign_producer(bus, client):
    """CloudEvents and bare JSON with an id are read; without an id decoding fails."""
    await bus.partitions("orders")
    cloudevent = {"ce_specversion": "1.0", "ce_id": "1", "ce_source": "/x", "ce_type": "T"}
    bare, nameless = {"message_id": "2", "key": "k"}, {"other": b"\xff"}
    async with await read(bus) as reader:
        for fields in (cloudevent, bare, nameless):
            await client.xadd(bus.stream("orders", 0), {**fields, "data": '{"a": "ä"}'})
        first, second = await reader.messages(2)
        assert (first.event_id, first.event_type, first.payload) == ("1", "T", {"a": "ä"})
        assert (second.event_id, second.key, second.payload) == ("2", "k", {"a": "ä"})
        (delivery,) = await reader.take()
        with pytest.raises(WireError, match="no id"):
            decode(delivery.wire)


@pytest.mark.parametrize("mode", ["raw", "structured"])
async def test_modes_keep_the_key(service, prefix, mode):
    """A mode whose headers say little still tells a consumer what must stay in order."""
    async with RedisMessageBus(service("redis"), key_prefix=prefix, mode=mode) as bus:
        await bus.publish(message("orders", key="Schlüssel 1", event_id="1"))
        async with await read(bus) as reader:
            (delivery,) = await reader.take()
            assert delivery.wire.key == "Schlüssel 1"
            assert decode(delivery.wire).event_id == "1"


@pytest.mark.parametrize("size", [0, 1, 31, 32, 255, 256, 65535, 65536, 300_000])
async def test_every_size(bus, size):
    """Each size class of the packed form arrives byte for byte, in the body and in a field."""
    body, value = bytes(n % 256 for n in range(size)), "v" * min(size, 8000)
    metadata = {"some_thing": value} if value else {}
    await bus.publish(message("orders", body=body, metadata=metadata))
    async with await read(bus) as reader:
        (received,) = await reader.messages(1)
    assert (body, metadata) == (received.body, received.metadata)


# Topics


async def test_all_divide_alike(service, prefix):
    """A topic keeps its number of partitions, whatever a later bus is told."""
    async with (
        RedisMessageBus(service("redis"), key_prefix=prefix, partitions=4) as first,
        RedisMessageBus(service("redis"), key_prefix=prefix, partitions=16) as second,
    ):
        assert (4, 4) == (await first.partitions("orders"), await second.partitions("orders"))


async def test_trimming(service, prefix, client):
    """What every group has acked is trimmed down to *maxlen*, and nothing else ever."""
    async with RedisMessageBus(
        service("redis"), key_prefix=prefix, partitions=1, maxlen=100, claim_after=2
    ) as bus:
        stream = bus.stream("orders", 0)
        await bus.publish_many(keyed(1000))
        async with await read(bus, "fast") as fast, await read(bus, "slow") as slow:
            (held,) = await slow.take()
            assert len(await fast.messages(1000)) == 1000
            fast.subscription._trim_at = 0.0
            await fast.subscription._trim()
            assert await client.xlen(stream) == 1000
            await held.ack()
            assert len(await slow.messages(999)) == 999
            slow.subscription._trim_at = 0.0
            await slow.subscription._trim()
            # Redis removes whole nodes of 100 entries.
            assert 100 <= await client.xlen(stream) <= 200


async def test_without_groups_nothing_is_trimmed(service, prefix, client):
    """What nobody has read yet waits for the first group, however much it is."""
    async with RedisMessageBus(service("redis"), key_prefix=prefix, partitions=1, maxlen=0) as bus:
        await bus.publish_many(keyed(300))
        async with await read(bus) as reader:
            assert {"k": list(range(300))} == by_key(await reader.messages(300))


# Groups


async def test_delayed_nack_holds_its_key(bus):
    """What follows of a key waits for a nacked message; other keys go on."""
    async with await read(bus) as reader:
        await bus.publish_many(keyed(1))
        (first,) = await reader.take()
        await first.nack(delay=1.0)
        await bus.publish_many([*keyed(2)[1:], *keyed(1, "other")])
        assert ["other0", "k0", "k1"] == ids(await reader.messages(3))


async def test_nacks_return_to_their_place(bus):
    """Messages nacked in any order come again in the order of the key, and are counted."""
    async with await read(bus) as reader:
        await bus.publish_many(keyed(3))
        held = await reader.take(3)
        for delivery in (held[2], held[0], held[1]):
            await delivery.nack(delay=0.1)
        again = await reader.take(3)
        assert ["k0", "k1", "k2"] == [d.wire.headers["message_id"] for d in again]
        assert [2, 2, 2] == [d.attempt for d in again]


async def test_attempts_are_counted_in_redis(bus):
    """A nack counts for the next member too; what a member never handed out does not."""
    async with await read(bus, prefetch=3) as reader:
        await bus.publish_many(keyed(3))
        (first,) = await reader.take()
        await first.nack()
        await reader.take(3)
    async with await read(bus) as reader:
        assert [3, 2, 2] == [d.attempt for d in await reader.take(3)]


async def test_settled_once(bus):
    """A second ack or nack is an error."""
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


async def test_silent_member_loses_its_partitions(bus):
    """A member that does not renew its lease hands out nothing more, and another takes over."""
    silent = await read(bus, prefetch=1)
    async with silent:
        await bus.publish_many(keyed(3))
        (held,) = await silent.take()
        keeping, _ = silent.subscription._tasks
        keeping.cancel()
        async with await read(bus) as other:
            (again,) = await other.take()
            assert "k0" == again.wire.headers["message_id"]
            assert again.attempt == 2
            await again.ack()
            assert ["k1", "k2"] == ids(await other.messages(2))
            await held.ack()  # late, but true
            assert await silent.silent(0.3)
            assert await other.subscription.lag() == 0


async def test_partitions_move_only_when_they_are_free(bus):
    """A new member gets its share, but no partition of which a message is in hand."""
    first = await read(bus, prefetch=100)
    async with first:
        await bus.publish_many([message("orders", key=f"k{n}") for n in range(40)])
        held = await first.take(40)
        async with await read(bus) as second:
            assert await second.silent(1.5)
            for delivery in held:
                await delivery.ack()
            await bus.publish_many([message("orders", key=f"k{n}") for n in range(40)])
            (mine,) = await second.take()
            (other,) = await first.take()
            assert mine.wire.key != other.wire.key


async def test_partitions_that_stay_after_all(bus):
    """What waits in a member is not forgotten when a new member comes and goes at once."""
    async with await read(bus) as reader:
        await bus.publish_many([m for n in range(30) for m in keyed(2, f"key{n}-")])
        held = await reader.take(60)
        for delivery in held[::2]:
            await delivery.nack(delay=3.0)
        async with await read(bus) as visitor:
            async with asyncio.timeout(5):
                while not any(lane.leaving for lane in reader.subscription._lanes):
                    await asyncio.sleep(0.01)
            assert await visitor.silent(1.0)
        again = await reader.take(30)
        expected = {delivery.wire.headers["message_id"] for delivery in held[::2]}
        assert expected == {delivery.wire.headers["message_id"] for delivery in again}


async def test_group_deleted_meanwhile(bus, client):
    """A subscription whose group is gone ends with an error, for the caller to come again."""
    subscription = await bus.subscribe("orders", group="group")
    for number in range(16):
        await client.delete(bus.stream("orders", number))
    with pytest.raises(BusError, match="gone"):
        await asyncio.wait_for(anext(subscription), 10)
    await subscription.close()
    await bus.publish_many(keyed(1))
    async with await read(bus) as reader:
        assert ["k0"] == ids(await reader.messages(1))


async def test_scripts_flushed(bus, client):
    """A server that forgot the scripts is told them again."""
    async with await read(bus) as reader:
        await client.script_flush()
        assert not any(await bus.publish_many(keyed(2)))
        assert ["k0", "k1"] == ids(await reader.messages(2))


async def test_cancelled_while_publishing(bus, client):
    """A batch that is cancelled half-way leaves no answer behind for the next one."""
    for turn in range(20):
        task = asyncio.create_task(bus.publish_many(keyed(50, f"c{turn}-")))
        for _ in range(turn):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert not any(await bus.publish_many(keyed(3)))
    await bus.ping()
    async with await read(bus, prefetch=2000) as reader:
        received = by_key(await reader.messages(await length(bus, client)))
    # Each batch is there as a whole, or not at all.
    assert {tuple(range(50)), (0, 1, 2)} >= {tuple(payloads) for payloads in received.values()}


# Clients and options


async def test_given_client_stays_open(client, prefix):
    """A client that was given is the caller's to close."""
    async with RedisMessageBus(client, key_prefix=prefix) as bus:
        await bus.publish(message("orders", event_id="1"))
        async with await read(bus) as reader:
            assert ["1"] == ids(await reader.messages(1))
    assert await client.ping()


@pytest.mark.parametrize(
    "options",
    [{"partitions": 0}, {"maxlen": -1}, {"claim_after": 0.5}, {"timeout_seconds": 0}],
)
def test_bad_options(options):
    """Wrong settings are refused when the bus is made."""
    with pytest.raises(ConfigurationError):
        RedisMessageBus("redis://localhost", **options)


async def test_client_that_decodes():
    """A client that would spoil binary bodies is refused."""
    async with Redis(decode_responses=True) as client:
        with pytest.raises(ConfigurationError, match="decode_responses"):
            RedisMessageBus(client)


async def test_bad_url():
    """An address that is none is a mistake of configuration, and its password is not repeated."""
    with pytest.raises(ConfigurationError) as caught:
        await RedisMessageBus("redis://user:hush@host:port").start()
    assert "hush" not in str(caught.value)


def test_table_in_the_docs():
    """The page shows every row of the table, with the same class."""
    rows = re.findall(r"^\| `([^`]+)` \| (\w+) \|", PAGE.read_text(), re.MULTILINE)
    assert dict(rows) == {sign: row.kind for sign, row in ERRORS.items()}
