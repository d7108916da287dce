"""Signed and encrypted payloads: readable by the standard, and nobody can alter them."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given, strategies as st
from joserfc import jwe, jws
from joserfc.jwk import OctKey

from semel import Hub, InMemoryMessageBus, JsonSerializer, MessageEnvelope, SqlAlchemyStorage
from semel.codecs import EncryptedSerializer, MessagePackSerializer, SignedSerializer
from semel.codecs.jose import JoseSerializer, from_base64, to_base64
from semel.errors import ConfigurationError, SerializationError
from semel.serializers import encode
from tests.scenarios.relaying import config, eventually
from tests.services import Database

OLD, NEW = secrets.token_bytes(32), secrets.token_bytes(32)
PAYLOAD = {"card": "CANARY-4111"}
BOTH = [SignedSerializer, EncryptedSerializer]

both = pytest.mark.parametrize("kind", BOTH)


def sent(serializer: JoseSerializer, **fields: Any) -> MessageEnvelope:
    """A message as it arrives at the other side."""
    about = {"topic": "cards", "event_type": "Charged", "event_id": "e-1", "key": "k"} | fields
    made = encode(serializer, MessageEnvelope(payload=PAYLOAD, **about))
    return MessageEnvelope(body=made.body, content_type=made.content_type, **about)


def altered(message: MessageEnvelope, **fields: Any) -> MessageEnvelope:
    return MessageEnvelope.restore(message.__dict__ | fields)


@both
def test_sec16_round_trip(kind: type[JoseSerializer]) -> None:
    serializer = kind({"a": OLD})
    assert PAYLOAD == serializer.decode(sent(serializer))
    packed = kind({"a": OLD}, inner=MessagePackSerializer())
    assert PAYLOAD == packed.decode(sent(packed))


def test_sec16_other_libraries_read_it() -> None:
    """The forms are those of RFC 7515 and RFC 7516, as another implementation reads them."""
    key = OctKey.import_key(OLD)
    signed = jws.deserialize_compact(
        sent(SignedSerializer({"a": OLD})).body,
        key,
        registry=jws.JWSRegistry(strict_check_header=False),
    )
    sealed = jwe.decrypt_compact(
        sent(EncryptedSerializer({"a": OLD})).body,
        key,
        registry=jwe.JWERegistry(strict_check_header=False),
    )

    for found in (signed.payload, sealed.plaintext):
        assert PAYLOAD == json.loads(found or b"")
    assert "e-1" == signed.headers()["ce_id"] == sealed.protected["ce_id"]


def test_sec16_encrypted_is_unreadable() -> None:
    serializer = EncryptedSerializer({"a": OLD})
    bodies = {sent(serializer).body for _ in range(20)}

    assert 20 == len(bodies)  # a nonce each
    for body in bodies:
        assert not any(b"CANARY" in from_base64(part) for part in body.split(b"."))


@both
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("event_id", "e-2"),
        ("event_type", "Refunded"),
        ("tenant_id", "globex"),
        ("key", "other"),
        ("aggregate_id", "a"),
        ("schema_version", 2),
        ("schema_id", "s"),
    ],
)
def test_sec16_it_belongs_to_one_message(
    kind: type[JoseSerializer], field: str, value: object
) -> None:
    """A good body under another id would be a second effect, in another tenant a leak."""
    serializer = kind({"a": OLD})
    with pytest.raises(SerializationError, match="another message"):
        serializer.decode(altered(sent(serializer), **{field: value}))


@both
def test_sec16_keys_rotate(kind: type[JoseSerializer]) -> None:
    before, during, after = kind({"a": OLD}), kind({"b": NEW, "a": OLD}), kind({"b": NEW})

    assert PAYLOAD == during.decode(sent(before))
    assert PAYLOAD == after.decode(sent(during))
    with pytest.raises(SerializationError, match="not known here"):
        after.decode(sent(before))
    with pytest.raises(SerializationError, match="changed"):
        kind({"a": NEW}).decode(sent(before))


@both
@given(data=st.data())
def test_sec16_no_bit_can_be_changed(kind: type[JoseSerializer], data: st.DataObject) -> None:
    serializer = kind({"a": OLD})
    message = sent(serializer)
    body = bytearray(message.body)
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] ^= 1 << data.draw(st.integers(0, 7))

    with pytest.raises(SerializationError):
        serializer.decode(altered(message, body=bytes(body)))


@both
@given(body=st.binary(max_size=200) | st.lists(st.binary(max_size=20)).map(b".".join))
def test_sec16_nonsense_is_refused(kind: type[JoseSerializer], body: bytes) -> None:
    serializer = kind({"a": OLD})
    with pytest.raises(SerializationError):
        serializer.decode(altered(sent(serializer), body=body))


@pytest.mark.parametrize("algorithm", ["none", "HS512", "RS256", None, 1])
def test_sec16_a_message_does_not_choose_its_algorithm(algorithm: object) -> None:
    serializer = SignedSerializer({"a": OLD})
    message = sent(serializer)
    protected, rest = message.body.split(b".", 1)
    header = json.loads(from_base64(protected)) | {"alg": algorithm}
    forged = to_base64(json.dumps(header).encode()) + b"." + rest
    with pytest.raises(SerializationError, match="not accepted"):
        serializer.decode(altered(message, body=forged))


@both
def test_sec16_errors_and_reprs_hide_payload_and_keys(kind: type[JoseSerializer]) -> None:
    serializer = kind({"a": OLD})
    message = sent(serializer)
    with pytest.raises(SerializationError) as caught:
        kind({"a": NEW}).decode(message)
    for text in (str(caught.value), repr(serializer), repr(message)):
        assert "CANARY" not in text
        assert OLD.hex() not in text
        assert repr(OLD) not in text


@both
@pytest.mark.parametrize("keys", [{}, {"a": b"short"}, {"a": "x" * 32}, {"": OLD}, {"a\n": OLD}])
def test_sec16_bad_keys(kind: type[JoseSerializer], keys: dict[str, Any]) -> None:
    with pytest.raises((ConfigurationError, ValueError)):
        kind(keys)
    with pytest.raises(ConfigurationError, match="payloads of messages"):
        kind({"a": OLD}).dumps(PAYLOAD)


@pytest.fixture(params=BOTH)
async def storage(
    request: pytest.FixtureRequest, sqlite: Database
) -> AsyncIterator[SqlAlchemyStorage]:
    async with SqlAlchemyStorage(sqlite.url, serializer=request.param({"a": OLD})) as storage:
        await storage.initialize()
        yield storage


async def test_sec16_from_outbox_to_handler(storage: SqlAlchemyStorage) -> None:
    """What was forged, stripped or moved is parked with the reason; the rest gets through."""
    bus = InMemoryMessageBus()
    hub = Hub("billing", storage=storage, bus=bus, config=config())
    seen: list[str] = []

    @hub.on("cards", "Charged")
    async def charge(message: MessageEnvelope, uow: object) -> None:
        seen.append(f"{message.event_id} {message.payload['card']}")

    async with hub.running():
        async with hub.unit_of_work() as uow:
            await uow.outbox.add("cards", PAYLOAD, event_type="Charged", event_id="good")
            await uow.commit()
        await hub.drain()
        (good,) = bus.published
        about = {"topic": "cards", "event_type": "Charged"}
        await bus.publish(MessageEnvelope(payload=PAYLOAD, event_id="stripped", **about))
        await bus.publish(
            MessageEnvelope(
                body=good.body, content_type=good.headers["content-type"], event_id="moved", **about
            )
        )
        await bus.publish(
            MessageEnvelope(
                body=MessagePackSerializer().dumps(PAYLOAD),
                content_type="application/msgpack",
                event_id="other",
                **about,
            )
        )

        async def parked() -> dict[str, str]:
            rows = await storage.inbox.search()
            return {row.message_id: row.reason or "" for row in rows if row.status == "PARKED"}

        await eventually(lambda: parked_is(parked, 3))
        reasons = await parked()

    assert ["good CANARY-4111"] == seen
    assert {"stripped", "moved", "other"} == set(reasons)
    assert "neither signed nor encrypted" in reasons["stripped"]
    assert "another message" in reasons["moved"]


async def parked_is(parked: Any, count: int) -> bool:
    return len(await parked()) == count


async def test_sec16_plain_messages_on_request(storage: SqlAlchemyStorage) -> None:
    """While producers are moved one by one, both are read: the consumer says so."""
    bus = InMemoryMessageBus()
    serializers = [storage.serializer, JsonSerializer()]
    hub = Hub("billing", storage=storage, bus=bus, config=config(), serializers=serializers)
    seen: list[str] = []

    @hub.on("cards", "Charged")
    async def charge(message: MessageEnvelope, uow: object) -> None:
        seen.append(message.payload["card"])

    async with hub.running():
        await bus.publish(MessageEnvelope(topic="cards", payload=PAYLOAD, event_type="Charged"))
        await eventually(lambda: len(seen) == 1)
