"""Messages that try to run code, or are too much: they are parked, and the next is handled."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import select

from semel import MessageEnvelope, SqlAlchemyStorage
from semel.codecs import MessagePackSerializer
from semel.errors import PayloadTooLargeError, SemelError, SerializationError
from semel.serializers import JsonSerializer
from semel.sqlalchemy.tables import InboxRecord, OutboxRecord
from semel.transports.memory import InMemoryMessageBus
from semel.wire import WireMessage, decode
from tests.scenarios.consuming import consumer_of, drained, job, prepare
from tests.services import Database

HEADERS = {"message_id": "x", "content-type": "application/json", "ce_type": "job.assigned"}
JSON_BOMBS = {
    "deep list": b"[" * 5_000_000,
    "deep and closed": b"[" * 100_000 + b"]" * 100_000,
    "deep object": b'{"a":' * 500_000 + b"1" + b"}" * 500_000,
    "huge number": b"1" * 2_000_000,
    "huge exponent": b"[" + b"1e999999999," * 1000 + b"1]",
    "not a number": b"[NaN, Infinity]",
    "broken": b'{"a": ',
    "no text": b"\xff\xfe\x00",
}


@pytest.fixture
async def storage(sqlite: Database) -> AsyncIterator[SqlAlchemyStorage]:
    async with SqlAlchemyStorage(sqlite.url) as storage:
        await prepare(storage)
        yield storage


class Raw(InMemoryMessageBus):
    """Sends what it is given, as anybody with a connection to a broker can."""

    def encode(self, message: MessageEnvelope) -> WireMessage:
        wire = message.__dict__.get("wire")
        return super().encode(message) if wire is None else wire


async def handled(storage: SqlAlchemyStorage, wires: list[WireMessage]) -> list[Any]:
    """What a handler gets to see of *wires* and of a good message behind them."""
    bus = Raw()
    consumer = consumer_of(bus, storage)
    seen: list[Any] = []

    @consumer.on("job.assigned")
    async def handle(message: MessageEnvelope) -> None:
        seen.append(message.payload)

    for wire in wires:
        await bus.publish(MessageEnvelope.restore(job("raw").__dict__ | {"wire": wire}))
    await bus.publish(job("good"))
    async with consumer:
        await drained(consumer)
    return seen


@pytest.mark.parametrize("kind", JSON_BOMBS)
async def test_sec11_a_bomb_is_parked(storage: SqlAlchemyStorage, kind: str) -> None:
    seen = await handled(storage, [WireMessage("jobs", None, HEADERS, JSON_BOMBS[kind])])

    assert {"name": "good"} in seen
    if kind == "huge exponent":
        return  # infinite in Python, and of no weight
    assert [{"name": "good"}] == seen
    async with storage.session_factory() as session:
        letter = (await session.scalars(select(OutboxRecord))).one()
        parked = await session.scalar(select(InboxRecord).where(InboxRecord.status == "PARKED"))
    assert parked is not None
    assert "jobs.dead" == letter.topic
    assert "undecodable" in (parked.reason or "")
    assert len(parked.reason or "") < 200


@pytest.mark.parametrize(
    "headers",
    [
        {f"h{n}": "v" for n in range(1000)},
        {"h": "v" * 1_000_000},
        {"message_id": "x" * 300},
        {"message_id": "a\r\nb"},
        {"message_id": "x", "ce_tenantid": "t" * 65},
        {"message_id": "x", "ce_schemaversion": "9" * 5000},
        {"message_id": "x", "ce_time": "9" * 5000},
    ],
)
async def test_sec11_headers_are_bounded(
    storage: SqlAlchemyStorage, headers: dict[str, str]
) -> None:
    wire = WireMessage("jobs", None, HEADERS | headers, b"{}")
    with pytest.raises(SemelError) as caught:
        decode(wire)
    assert len(str(caught.value)) < 300
    assert [{"name": "good"}] == await handled(storage, [wire])


async def test_sec11_a_payload_is_refused_before_it_is_stored(storage: SqlAlchemyStorage) -> None:
    async with storage.unit_of_work() as uow:
        with pytest.raises(PayloadTooLargeError, match="max_payload_bytes"):
            await uow.outbox.add("jobs", "x" * 300_000)
        await uow.commit()
    assert [] == await storage.outbox.search()


def test_sec11_decoding_needs_no_more_memory_than_a_few_times_the_message() -> None:
    packer = MessagePackSerializer()
    bombs = [(packer, b"\xdd\xff\xff\xff\xff"), (packer, b"\xc6\xff\xff\xff\xff")]
    bombs += [(JsonSerializer(), bomb) for bomb in JSON_BOMBS.values() if len(bomb) < 1_000_000]
    for serializer, bomb in bombs:
        tracemalloc.start()
        try:
            serializer.loads(bomb)
        except SerializationError as error:
            assert len(str(error)) < 200  # noqa: PT017  some bombs are harmless
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert most < 40 * len(bomb) + 1_000_000


@pytest.mark.parametrize("name", ["os.system", "builtins:eval", "__import__", "semel.hub.Hub"])
async def test_sec10_a_type_is_a_name_and_nothing_more(
    storage: SqlAlchemyStorage, name: str
) -> None:
    """No class is looked up: what nobody registered is parked."""
    payload = {"__class__": name, "py/object": name, "$type": name, "args": ["touch /tmp/x"]}
    headers = {"message_id": "x", "content-type": "application/json"}
    unknown = WireMessage("jobs", None, headers | {"ce_type": name}, json.dumps(payload).encode())
    known = WireMessage(
        "jobs",
        None,
        {"message_id": "y", "content-type": "application/json", "ce_type": "job.assigned"},
        json.dumps(payload).encode(),
    )
    seen = await handled(storage, [unknown, known])

    assert 2 == len(seen)  # in any order: they have no key
    assert payload in seen
    (parked,) = [row for row in await storage.inbox.search() if row.status == "PARKED"]
    assert "unknown_type" in (parked.reason or "")


@pytest.mark.parametrize("kind", ["application/x-python-pickle", "application/x-yaml", "text/x"])
async def test_sec10_a_content_type_chooses_no_decoder(
    storage: SqlAlchemyStorage, kind: str
) -> None:
    """Bytes of a type that nobody gave a serializer for stay bytes."""
    bus = Raw()
    consumer = consumer_of(bus, storage)
    seen: list[str] = []

    @consumer.on("job.assigned")
    async def handle(message: MessageEnvelope) -> None:
        seen.append(type(message.body).__name__)
        with pytest.raises(SerializationError):
            message.payload  # noqa: B018

    wire = WireMessage("jobs", None, HEADERS | {"content-type": kind}, b"cos\nsystem\n(S'x'\ntR.")
    await bus.publish(MessageEnvelope.restore(job("raw").__dict__ | {"wire": wire}))
    async with consumer:
        await drained(consumer)

    assert ["bytes"] == seen
