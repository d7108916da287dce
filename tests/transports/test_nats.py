"""NATS JetStream: the contract of all buses on a real server, and what only it promises."""

import asyncio
import re
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import nats
import pytest
from nats.js.api import DiscardPolicy
from nats.js.errors import NotFoundError

from semel.envelope import MessageEnvelope
from semel.errors import BusError, ConfigurationError, InvalidMessageError, PublishError, WireError
from semel.testing.contracts import MessageBusContract
from semel.testing.contracts.harness import by_key, ids, message
from semel.testing.reader import Reader
from semel.transports.nats import NatsMessageBus
from semel.transports.nats_publishing import ERRORS
from semel.wire import decode

pytestmark = pytest.mark.nats

PAGE = Path(__file__).parents[2] / "docs/transports/nats.md"


@pytest.fixture
async def client(service):
    client = await nats.connect(service("nats"))
    yield client
    await client.close()


@pytest.fixture
async def stream(client):
    """A stream's name that is free; the stream is gone afterwards."""
    name = f"test-{uuid4().hex[:12]}"
    yield name
    with suppress(NotFoundError):
        await client.jetstream().delete_stream(name)


@pytest.fixture
async def bus(service, stream):
    async with NatsMessageBus(service("nats"), stream=stream) as bus:
        yield bus


async def read(bus, topic="orders", group="group", prefetch=100) -> Reader:
    return Reader(await bus.subscribe(topic, group=group, prefetch=prefetch))


class TestContract(MessageBusContract):
    prefix = "ce-"
    survives_restart = True
    deduplicates = True
    breaks_keys = True

    async def break_key(self, bus, topic, key):
        return MessageEnvelope(topic=topic, key=key, body=b"x" * (1024 * 1024 + 1))


# The wire


async def test_plain_client_reads(bus, client, stream):
    """A consumer without this library finds CloudEvents headers and the body as it is."""
    await bus.publish(message("orders", body=b'{"n": 1}', event_id="1", key="k"))
    subscription = await client.jetstream().subscribe(f"{stream}.orders.*")
    received = await subscription.next_msg(timeout=5)
    assert received.data == b'{"n": 1}'
    assert received.headers["ce-id"] == received.headers["message_id"] == "1"
    assert received.headers["ce-specversion"] == "1.0"
    assert received.headers["content-type"] == "application/json"


async def test_foreign_producer(bus, client, stream):
    """CloudEvents and bare JSON with an id are read; without an id decoding fails."""
    cloudevent = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/x", "ce-type": "T"}
    async with await read(bus) as reader:
        for headers in (cloudevent, {"message_id": "2"}, {"other": "x"}):
            await client.jetstream().publish(
                f"{stream}.orders.p0", b'{"a": "\xc3\xa4"}', headers=headers
            )
        first, second = await reader.messages(2)
        assert (first.event_id, first.event_type, first.payload) == ("1", "T", {"a": "ä"})
        assert (second.event_id, second.payload) == ("2", {"a": "ä"})
        (nameless,) = await reader.take()
        with pytest.raises(WireError, match="no id"):
            decode(nameless.wire)


@pytest.mark.parametrize("mode", ["raw", "structured"])
async def test_modes_keep_the_key(service, stream, mode):
    """A mode whose headers say little still tells a consumer what must stay in order."""
    sent = message("orders", key="Schlüssel 1", event_id="1")
    async with NatsMessageBus(service("nats"), stream=stream, modes={"orders": mode}) as bus:
        await bus.publish(sent)
        async with await read(bus) as reader:
            (delivery,) = await reader.take()
            assert delivery.wire.key == "Schlüssel 1"
            assert decode(delivery.wire).event_id == "1"


async def test_same_id_elsewhere_is_no_duplicate(bus):
    """The same id in another topic or of another tenant is another message."""
    await bus.publish_many(
        [
            message("orders", event_id="1"),
            message("orders", event_id="1", tenant_id="b"),
            message("orders.dead", event_id="1"),
        ]
    )
    async with await read(bus) as orders, await read(bus, "orders.dead") as dead:
        assert {"default", "b"} == {m.tenant_id for m in await orders.messages(2)}
        assert ["1"] == ids(await dead.messages(1))


@pytest.mark.parametrize("topic", ["a b", "a.*", "a.>", ".a", "a.", "a..b", "$JS.API", "a\tb"])
async def test_bad_topic(bus, topic):
    """A topic that NATS would refuse or misread is refused first."""
    with pytest.raises(InvalidMessageError):
        await bus.subscribe(topic, group="g")
    with pytest.raises(PublishError) as caught:
        await bus.publish(MessageEnvelope.restore({**message("a").__dict__, "topic": topic}))
    assert caught.value.kind == "permanent"


# Stream


async def test_creates_its_stream(service, client, stream):
    """The settings of a new stream are those of the bus."""
    options = {"partitions": 4, "retention_seconds": 3600, "duplicate_seconds": 5}
    async with NatsMessageBus(service("nats"), stream=stream, **options):
        config = (await client.jetstream().stream_info(stream)).config
    assert ([f"{stream}.>"], 3600, 5) == (config.subjects, config.max_age, config.duplicate_window)


async def test_all_divide_alike(service, stream):
    """A stream keeps its number of partitions, whatever a later bus is told."""
    async with (
        NatsMessageBus(service("nats"), stream=stream, partitions=4) as first,
        NatsMessageBus(service("nats"), stream=stream, partitions=16) as second,
    ):
        assert (4, 4) == (first.partitions, second.partitions)
        assert first.subject("t", "key 9", "1") == second.subject("t", "key 9", "2")


async def test_existing_stream(service, client, stream):
    """A stream that takes the subjects is used as it is."""
    await client.jetstream().add_stream(name=stream, subjects=[f"{stream}.shop.orders.*"])
    async with NatsMessageBus(
        service("nats"), stream=stream, subject_prefix=f"{stream}.shop", create=False
    ) as bus:
        await bus.publish(message("orders"))
    assert (await client.jetstream().stream_info(stream)).state.messages == 1


async def test_stream_that_takes_other_subjects(service, client, stream):
    """A stream that does not take the subjects is a mistake, and the text says what to add."""
    await client.jetstream().add_stream(name=stream, subjects=[f"{stream}-other.>"])
    with pytest.raises(ConfigurationError, match=f"add '{stream}.>'"):
        await NatsMessageBus(service("nats"), stream=stream).start()


async def test_missing_stream(service, stream):
    """Without its stream a bus that must not create it waits."""
    bus = NatsMessageBus(service("nats"), stream=stream, create=False)
    with pytest.raises(PublishError, match="no stream") as caught:
        await bus.publish(message("orders"))
    assert caught.value.kind == "destination"


async def test_stream_deleted_meanwhile(bus, client, stream):
    """Publishing to a stream that is gone waits; then it is created again."""
    await bus.publish(message("orders"))
    await client.jetstream().delete_stream(stream)
    with pytest.raises(PublishError) as caught:
        await bus.publish(message("orders"))
    assert caught.value.kind == "destination"
    await bus.publish(message("orders"))


async def test_consumers_deleted_meanwhile(bus, client, stream):
    """A subscription whose consumers are gone ends with an error, for the caller to come again."""
    subscription = await bus.subscribe("orders", group="group")
    await client.jetstream().delete_stream(stream)
    with pytest.raises(BusError, match="gone"):
        await asyncio.wait_for(anext(subscription), 20)
    assert not subscription.is_connected()
    await subscription.close()


# Refusals


async def test_stream_full(bus, client, stream):
    """A full stream (discard: new) is the destination's trouble, and passes."""
    jetstream = client.jetstream()
    config = (await jetstream.stream_info(stream)).config
    await jetstream.update_stream(config, max_msgs=2, discard=DiscardPolicy.NEW)
    sent = [message("orders", key=f"k{n}") for n in range(4)]
    kinds = [error and error.kind for error in await bus.publish_many(sent)]
    assert {None: 2, "destination": 2} == {kind: kinds.count(kind) for kind in set(kinds)}
    await jetstream.update_stream(config, max_msgs=-1, discard=DiscardPolicy.OLD)
    assert not any(await bus.publish_many(sent))


async def test_refused_by_the_stream(bus, client, stream):
    """What the server refuses stops its key, and later messages of the key are never sent."""
    jetstream = client.jetstream()
    config = (await jetstream.stream_info(stream)).config
    await jetstream.update_stream(config, max_msg_size=2000)
    sent = [message("orders", key="k", payload=n) for n in range(20)]
    sent[5] = message("orders", key="k", payload="x" * 3000)
    results = await bus.publish_many([*sent, message("orders", key="other")])
    assert [None] * 5 == results[:5]
    assert results[5].kind == "permanent"
    assert all(result is results[5] for result in results[5:20])
    assert results[20] is None
    assert (await jetstream.stream_info(stream)).state.messages == 6


async def test_headers_count_as_payload(bus):
    """A message that only its headers make too large is refused here: the server would hang up."""
    size = 1024 * 1024 - 300
    with pytest.raises(PublishError, match="max_payload") as caught:
        await bus.publish(message("orders", body=b"x" * size))
    assert caught.value.kind == "permanent"
    await bus.publish(message("orders"))


# Groups


async def test_heartbeats(service, stream):
    """A handler may take longer than the server waits: nobody else gets its message."""
    async with NatsMessageBus(service("nats"), stream=stream, ack_seconds=1) as bus:
        async with await read(bus) as busy, await read(bus) as idle:
            await bus.publish(message("orders", key="k"))
            owner, other = (idle, busy) if await busy.silent(0.5) else (busy, idle)
            (held,) = await owner.take()
            assert await other.silent(2.5)
            assert await owner.silent(0.01)
            await held.ack()
        assert held.attempt == 1


async def test_settled_once(bus):
    """A second ack or nack is an error."""
    async with await read(bus) as reader:
        await bus.publish(message("orders"))
        (first,) = await reader.take()
        await first.nack()
        (second,) = await reader.take()
        with pytest.raises(BusError, match="before"):
            await first.ack()
        await second.ack()
        with pytest.raises(BusError, match="before"):
            await second.nack()


async def test_term(bus, client):
    """A terminated message never comes again, and the server tells whoever listens."""
    told = await client.subscribe("$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.>")
    await client.flush()
    async with await read(bus) as reader:
        await bus.publish_many([message("orders", key="k", payload=n) for n in range(2)])
        (first,) = await reader.take()
        await first.term()
        assert {"k": [1]} == by_key(await reader.messages(1))
    assert b"terminated" in (await told.next_msg(timeout=5)).data


async def test_nack_holds_its_key(bus):
    """What follows of a key waits for a nacked message."""
    async with await read(bus) as reader:
        await bus.publish_many([message("orders", key="k", payload=n) for n in range(3)])
        (first,) = await reader.take()
        await first.nack(delay=0.3)
        assert {"k": [0, 1, 2]} == by_key(await reader.messages(3))


async def test_names_that_nats_refuses(bus):
    """Groups and topics may have dots, spaces and umlauts: consumers are named without them."""
    async with await read(bus, "orders.eu", "Müller & Söhne, v1.0") as reader:
        await bus.publish(message("orders.eu", event_id="1"))
        assert ["1"] == ids(await reader.messages(1))


# Clients and options


async def test_given_client_stays_open(client, stream):
    """A client that was given is the caller's to close."""
    async with NatsMessageBus(client, stream=stream) as bus:
        await bus.publish(message("orders", event_id="1"))
        async with await read(bus) as reader:
            assert ["1"] == ids(await reader.messages(1))
    assert client.is_connected
    assert len(client._subs) == 1  # its own, for requests


@pytest.mark.parametrize(
    "options",
    [
        {"stream": "a b"},
        {"partitions": 0},
        {"replicas": 0},
        {"ack_seconds": 0.5},
        {"timeout_seconds": 0},
    ],
)
def test_bad_options(options):
    """Wrong settings are refused when the bus is made."""
    with pytest.raises(ConfigurationError):
        NatsMessageBus("nats://localhost", **options)


def test_table_in_the_docs():
    """The page shows every row of the table, with the same class."""
    rows = re.findall(r"^\| `([^`]+)` \| (\w+) \|", PAGE.read_text(), re.MULTILINE)
    assert dict(rows) == {sign: row.kind for sign, row in ERRORS.items()}


def test_table_has_codes_of_the_server():
    """A row is a code of JetStream, or one of our own words."""
    words = {sign for sign in ERRORS if not sign.isdigit()}
    assert {"max_payload", "permission", "connect", "lost", "timeout", "other"} == words
