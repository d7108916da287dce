"""Which serializer reads a message, and how old versions become the newest."""

import pytest

from semel.codecs import MessagePackSerializer, MsgspecJsonSerializer, OrjsonSerializer
from semel.envelope import MessageEnvelope
from semel.errors import ConfigurationError, SerializationError
from semel.serializers import Serializers, Upcasters


def message(payload=None, **fields) -> MessageEnvelope:
    own = {} if "body" in fields else {"payload": payload}
    return MessageEnvelope(**{"topic": "orders", "event_type": "OrderPlaced"} | own | fields)


def test_serializers_by_content_type():
    """A content type finds its serializer by any of its names, and without its parameters."""
    serializers = Serializers([MessagePackSerializer()])
    body = MessagePackSerializer().dumps([1, b"x"])
    for kind in ("application/msgpack", "Application/X-MsgPack; charset=binary"):
        assert [1, b"x"] == serializers.attach(message(None, body=body, content_type=kind)).payload
    assert not serializers.reads("application/json")


def test_message_without_serializer():
    """JSON needs none; another content type says what is missing."""
    serializers = Serializers([])
    assert {"n": 1} == serializers.attach(message(None, body=b'{"n":1}')).payload
    other = serializers.attach(message(None, body=b"x", content_type="application/msgpack"))
    with pytest.raises(SerializationError, match="give the consumer a serializer"):
        _ = other.payload


def test_two_serializers_for_one_type():
    """Two that read the same content type are a mistake."""
    with pytest.raises(ConfigurationError, match="application/json"):
        Serializers([OrjsonSerializer(), MsgspecJsonSerializer()])


def test_attached_message_is_the_same_message():
    """Attaching changes how the payload is read, not what the message is."""
    sent = message(None, body=b"\x01", content_type="application/msgpack")
    attached = Serializers([MessagePackSerializer()]).attach(sent)
    assert sent == attached
    assert 1 == attached.payload
    assert "payload" not in sent.__dict__


def test_upcasters_step_by_step():
    """Each function lifts one version, and the body stays as it was sent."""
    upcasters = (
        Upcasters()
        .register("OrderPlaced", 1, lambda old: {**old, "currency": "EUR"})
        .register("OrderPlaced", 2, lambda old: {**old, "lines": []})
    )
    sent = message({"id": 1})
    newest = upcasters.apply(sent)
    assert {"id": 1, "currency": "EUR", "lines": []} == newest.payload
    assert (3, b'{"id":1}') == (newest.schema_version, newest.body)
    assert {"id": 1, "lines": []} == upcasters.apply(message({"id": 1}, schema_version=2)).payload


def test_upcasters_leave_others_alone():
    """The newest version, other types and the message that was sent are not touched."""

    def spoil(old):
        old["spoilt"] = True
        return old

    upcasters = Upcasters().register("OrderPlaced", 1, spoil)
    sent, newest, other = (
        message({}),
        message({}, schema_version=2),
        message({}, event_type="Other"),
    )
    assert {"spoilt": True} == upcasters.apply(sent).payload
    assert {} == sent.payload
    assert newest is upcasters.apply(newest)
    assert other is upcasters.apply(other)


def test_upcasters_bad_registration():
    """Two functions for one step, and versions below 1, are mistakes."""
    upcasters = Upcasters().register("OrderPlaced", 1, dict)
    with pytest.raises(ConfigurationError, match="already"):
        upcasters.register("OrderPlaced", 1, dict)
    with pytest.raises(ConfigurationError, match="at least 1"):
        upcasters.register("OrderPlaced", 0, dict)
