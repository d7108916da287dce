"""Envelopes and wire messages: what is accepted comes back the same, the rest is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from semel.dead_letters import Reason, dead_letter, raw_letter, revive
from semel.envelope import MessageEnvelope
from semel.errors import InvalidMessageError, SerializationError, WireError
from semel.hashing import message_hash
from semel.wire import Mode, WireMessage, decode, encode
from semel.wire.message import MODES, RENAMED, RESERVED, TRACE
from tests.fuzz.hostile import CANARY, documents, fuzz, tells_nothing, texts, values

moments = st.one_of(
    st.datetimes(timezones=st.just(UTC)),
    st.datetimes(timezones=st.integers(-14, 14).map(lambda h: timezone(timedelta(hours=h)))),
    st.datetimes(),
    st.sampled_from([datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)]),
)
optional = st.one_of(st.none(), texts, st.integers())
fields = st.fixed_dictionaries(
    {"topic": st.one_of(st.just("orders"), texts)},
    optional={
        "event_type": texts,
        "event_id": texts,
        "tenant_id": texts,
        "key": optional,
        "aggregate_id": optional,
        "aggregate_type": optional,
        "routing_key": optional,
        "schema_id": optional,
        "schema_version": st.one_of(st.integers(), st.booleans(), texts),
        "source": optional,
        "occurred_at": st.one_of(moments, texts),
        "metadata": st.one_of(
            st.dictionaries(
                st.one_of(st.sampled_from([*RESERVED, *RENAMED, *TRACE, "a-b", "x" * 128]), texts),
                st.one_of(texts, st.integers()),
                max_size=4,
            ),
            texts,
        ),
        "content_type": texts,
    },
)
EARLY = datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))


@pytest.mark.parametrize("prefix", ["ce_", "ce-", "cloudEvents_"])
@pytest.mark.parametrize("mode", MODES)
@given(given=fields, payload=values)
@example(given={"topic": "t", "occurred_at": EARLY}, payload=1)
@fuzz(60)
def test_what_can_be_sent_arrives_the_same(
    prefix: str, mode: Mode, given: dict[str, Any], payload: Any
) -> None:
    try:
        message = MessageEnvelope(payload=payload, **given)
        wire = encode(message, prefix=prefix, mode=mode)
    except (InvalidMessageError, SerializationError, WireError) as error:
        tells_nothing(error)
        return
    found = decode(wire)
    assert (message.event_id, message.body) == (found.event_id, found.body)
    assert message.content_type == found.content_type
    assert message.order_key == found.order_key
    if mode != "raw":
        assert message._identity()[:10] == found._identity()[:10]
        assert message.occurred_at == found.occurred_at
        assert message.metadata == found.metadata


names = st.one_of(
    st.sampled_from(
        [
            *(
                prefix + name
                for prefix in ("ce_", "ce-", "Ce-", "cloudEvents:")
                for name in RESERVED
            ),
            *("message_id", "bh-message-id", "content-type", "Content-Type", "event_type", "ce_"),
            *("traceparent", "meta_", "meta_x", "ce_id", "ce_id"),
        ]
    ),
    texts,
)
said = st.one_of(
    texts,
    st.sampled_from(
        [
            *("1.0", "2.0", "application/json", "application/cloudevents+json", "m-1", "7"),
            *("application/cloudevents-batch+json", "application/avro", "%ff", "%00", "text/plain"),
            *("2026-01-31T12:00:00Z", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"),
            *("2026-13-01T00:00:00Z", "2026-01-31T12:00:00.123456789123Z", "2026-01-31"),
        ]
    ),
)
structured = st.dictionaries(
    st.one_of(st.sampled_from([*RESERVED, "data", "data_base64", "x"]), texts),
    st.one_of(said, values),
    max_size=6,
).map(lambda found: {"specversion": "1.0", "id": "m-1", "source": "s", "type": "t", **found})
wires = st.builds(
    WireMessage,
    st.just("orders"),
    st.one_of(st.none(), texts),
    st.dictionaries(names, said, max_size=6),
    documents(),
) | st.builds(
    WireMessage,
    st.just("orders"),
    st.none(),
    st.just({"content-type": "application/cloudevents+json"}),
    documents(structured),
)


@given(wire=wires)
@fuzz(500)
def test_whatever_a_broker_carries_is_a_message_or_parked(wire: WireMessage) -> None:
    """A message that is accepted can be sent on, hashed and given up; the rest keeps its bytes."""
    try:
        message = decode(wire)
    except WireError as error:
        tells_nothing(error)
        letter = raw_letter(
            wire,
            topic="orders.dead",
            consumer_name="c",
            reason=Reason.UNDECODABLE,
            detail=str(error),
        )
        assert letter.body == wire.body
        assert CANARY not in repr(wire)
        return
    message_hash(message)
    try:
        message.payload  # noqa: B018
    except SerializationError as error:
        tells_nothing(error)
    letter = dead_letter(
        message, topic="orders.dead", consumer_name="c", reason=Reason.FAILED, detail="é\ud800\n"
    )
    assert message.body == revive(letter).body
    assert message.event_id == revive(letter).event_id
    try:
        again = decode(encode(message))
    except WireError as error:  # metadata that grew too large when it was escaped
        tells_nothing(error)
        return
    # A source is given to what has none.
    before, after = list(message._identity()), list(again._identity())
    assert after.pop(10) == (before.pop(10) or "semel")
    assert before == after


@given(
    headers=st.one_of(
        st.dictionaries(st.integers(0, 999).map(str), st.just("x"), min_size=129, max_size=140),
        st.just({"ce_id": "m", "big": "x" * 40_000}),
        st.just({"ce_id": "m", "big": "é" * 20_000}),
    )
)
@fuzz(10)
def test_a_flood_of_headers_is_not_read(headers: dict[str, str]) -> None:
    with pytest.raises(WireError, match="at most"):
        decode(WireMessage("orders", None, headers, b"{}"))
