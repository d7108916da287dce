"""Serializers: what one writes it reads, damage is told from data, no bomb goes off."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from semel.codecs.encryption import EncryptedSerializer
from semel.codecs.jose import JoseSerializer, to_base64
from semel.codecs.msgspec import MessagePackSerializer, MsgspecJsonSerializer
from semel.codecs.orjson import OrjsonSerializer
from semel.codecs.signing import SignedSerializer
from semel.envelope import MessageEnvelope
from semel.errors import SerializationError
from semel.hashing import message_hash, payload_hash
from semel.protocols import Serializer
from semel.serializers import JsonSerializer, Serializers, encode
from tests.fuzz.hostile import BOMBS, CANARY, damaged, documents, fuzz, tells_nothing, values

JSON = [JsonSerializer(), MsgspecJsonSerializer(), OrjsonSerializer()]
KEY = {"k": CANARY.encode().ljust(32, b"!")}
PROTECTED = [SignedSerializer(KEY), EncryptedSerializer(KEY)]


def name_of(serializer: Any) -> str:
    return type(serializer).__name__


@pytest.mark.parametrize("serializer", [*JSON, MessagePackSerializer()], ids=name_of)
@given(payload=values)
@fuzz(150)
def test_what_is_written_is_read(serializer: Serializer, payload: Any) -> None:
    try:
        body = serializer.dumps(payload)
    except SerializationError as error:
        tells_nothing(error)
        return
    found = serializer.loads(body)
    assert body == serializer.dumps(found)
    assert payload == found
    assert payload_hash(payload) == payload_hash(found)


@pytest.mark.parametrize("serializer", [*JSON, MessagePackSerializer()], ids=name_of)
@given(body=st.one_of(documents(), st.sampled_from(BOMBS), st.binary(max_size=30)))
@fuzz(150)
def test_bytes_are_a_payload_or_refused(serializer: Serializer, body: bytes) -> None:
    try:
        serializer.loads(body)
    except SerializationError as error:
        tells_nothing(error)


@pytest.mark.parametrize("depth", [100, 900, 5000, 200_000])
@pytest.mark.parametrize("serializer", [*JSON, MessagePackSerializer()], ids=name_of)
def test_deep_nesting_is_refused_or_read(serializer: Serializer, depth: int) -> None:
    """Both ways, at any depth: never a crash of the interpreter, never another error."""
    payload: Any = 1
    for _ in range(depth):
        payload = [payload]
    opening = {True: b"\x91", False: b"["}[isinstance(serializer, MessagePackSerializer)]
    body = opening * depth + (b"\x01" if opening == b"\x91" else b"1" + b"]" * depth)
    for work in (lambda: serializer.dumps(payload), lambda: serializer.loads(body)):
        try:
            work()
        except SerializationError as error:
            tells_nothing(error)


@pytest.mark.parametrize("serializer", PROTECTED, ids=name_of)
@given(payload=values, seed=st.integers(0, 2**32))
@fuzz(80)
def test_damage_to_a_protected_body_is_noticed(
    serializer: JoseSerializer, payload: Any, seed: int
) -> None:
    message = MessageEnvelope(topic="orders", payload=payload)
    try:
        body, content_type, *_ = encode(serializer, message)
    except SerializationError as error:
        tells_nothing(error)
        return
    reader = Serializers([serializer])
    hurt = damaged(body, seed)
    for given_body in (body, hurt):
        arrived = MessageEnvelope(
            topic="orders", event_id=message.event_id, body=given_body, content_type=content_type
        )
        if given_body == body:
            assert payload == reader.attach(arrived).payload
        else:
            with pytest.raises(SerializationError) as refused:
                reader.attach(arrived).payload  # noqa: B018
            tells_nothing(refused.value, str(KEY["k"]))


@pytest.mark.parametrize("serializer", PROTECTED, ids=name_of)
@pytest.mark.parametrize("bomb", BOMBS, ids=lambda bomb: bomb[:8].hex())
def test_a_bomb_in_the_protected_header(serializer: JoseSerializer, bomb: bytes) -> None:
    """It is read before anything vouches for it."""
    for body in (bomb, to_base64(bomb) + b".a.b", to_base64(bomb) + b"....", to_base64(bomb)):
        message = MessageEnvelope(topic="t", body=body, content_type=serializer.content_type)
        with pytest.raises(SerializationError) as refused:
            Serializers([serializer]).attach(message).payload  # noqa: B018
        tells_nothing(refused.value)


@given(body=documents())
@fuzz(150)
def test_every_body_has_a_hash(body: bytes) -> None:
    """The inbox compares hashes: one message has one, however often it comes."""
    message = MessageEnvelope(topic="t", body=body)
    again = MessageEnvelope(topic="t", body=body)
    assert message_hash(message) == message_hash(again)
    assert message_hash(message) is not None
