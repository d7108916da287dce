"""What is stored is what was added: bytes, names, times and numbers."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import inspect, text, update

from semel.envelope import MessageEnvelope
from semel.errors import SchemaError
from semel.operations import OutboxFilter
from semel.relay import Read
from semel.sqlalchemy.outbox import SqlAlchemyOutbox
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.sqlalchemy.tables import OutboxRecord
from semel.testing.contracts.rows import PARTITIONS, add, bury, ids, unsent
from tests.services import Database
from tests.stores import shop

NAMES = [
    "evt-a",
    "EVT-A",
    "evt-a ",
    " evt-a",
    "évt-a",
    "e\u0301vt-a",
    "evt-ä",
    "evt-ß",
    "evt-ss",
    "😀",
]
DOCUMENTS = [
    '{"b":1,"a":2,"b":3}',
    '{ "spaced" : [ 1 , 2.0, 1e2 ] }',
    "12345678901234567890123456789",
    "1.0",
    "0.1000000000000000055511151231257827",
    '"\\u00e9 \\ud83d\\ude00 \\/ é 😀"',
    "null",
    '""',
    "[]",
    '"\\\\u0000 \' \\" % : :name %s $1 \\\\"',
]


async def test_fm_p05_json_is_stored_verbatim(storage: SqlAlchemyStorage) -> None:
    """The relay sends the bytes that were added; no database rewrites them."""
    async with storage.session_factory.begin() as session:
        for document in DOCUMENTS:
            await SqlAlchemyOutbox(session).put(MessageEnvelope(topic="t", body=document.encode()))
    entries = await unsent(storage)
    assert [document.encode() for document in DOCUMENTS] == [e.envelope.body for e in entries]
    expected = [json.loads(document) for document in DOCUMENTS]
    assert expected == [entry.envelope.payload for entry in entries]
    assert expected == [record.payload for record in await storage.outbox.search()][::-1]


async def test_fm_p05_payloads_of_every_kind(storage: SqlAlchemyStorage) -> None:
    """Key order, numbers and text survive; floats stay floats."""
    payload = {
        "z": 1,
        "a": [1.0, 1, -0.0, 10**30, 5e-324, True, None],
        "é": "\u2028 😀 \x7f \t\n",
        "": {},
    }
    async with storage.session_factory.begin() as session:
        await SqlAlchemyOutbox(session).add("t", payload)
    [entry] = await unsent(storage)
    assert json.dumps(payload) == json.dumps(entry.envelope.payload)


BARE: dict[str, Any] = {"topic": "t", "event_type": "e", "payload": 1, "schema_version": 3}
FULL: dict[str, Any] = {
    "topic": "u",
    "event_type": "f",
    "tenant_id": "acme",
    "body": b"\x00",
    "content_type": "application/octet-stream",
    "key": "k",
    "aggregate_id": "1",
    "aggregate_type": "Order",
    "routing_key": "r",
    "schema_id": "s",
    "metadata": {"user_id": "u"},
}


@pytest.mark.parametrize("pattern", ["b", "f", "bb", "ff", "bf", "fb", "bbf", "bfb", "fbb", "ffb"])
async def test_rows_of_a_transaction_may_be_alike_or_not(
    storage: SqlAlchemyStorage, pattern: str
) -> None:
    """One value, or none, in all rows of a column; or in the first only, the last only."""
    fields = [FULL if one == "f" else BARE for one in pattern]
    given = [MessageEnvelope(event_id=f"{n}", **some) for n, some in enumerate(fields)]
    async with storage.session_factory.begin() as session:
        await SqlAlchemyOutbox(session).put(*given)
    assert given == [entry.envelope for entry in await unsent(storage)]


@pytest.mark.parametrize("field", ["event_id", "key", "topic"])
async def test_fm_d11_names_compare_byte_for_byte(storage: SqlAlchemyStorage, field: str) -> None:
    """By case, trailing space, accent and composition: all are different names."""
    async with storage.session_factory.begin() as session:
        outbox = SqlAlchemyOutbox(session)
        for name in NAMES:
            await outbox.add(**({"topic": "t", "payload": name} | {field: name}))
    entries = await unsent(storage)
    assert NAMES == [entry.envelope.payload for entry in entries]
    column = {"event_id": "id", "key": "order_key", "topic": "topic"}[field]
    assert NAMES == [getattr(row, column) for row in await shop.rows(storage)]
    if field == "event_id":
        for name in NAMES:
            record = await storage.outbox.get(name)
            assert record is not None
            assert name == record.payload
    if field == "topic":
        for name in NAMES:
            found = await storage.outbox.search(OutboxFilter(topic=name))
            assert [name] == [record.payload for record in found]
            assert 9 == len(await ids(storage, skip_topics=[name]))


async def test_tenants_compare_byte_for_byte(storage: SqlAlchemyStorage) -> None:
    for tenant in ("acme", "ACME", "acme "):
        await add(storage, "t", tenant_id=tenant)
    for tenant in ("acme", "ACME", "acme "):
        assert [tenant] == [
            entry.envelope.tenant_id for entry in await unsent(storage, tenant_id=tenant)
        ]


async def test_fm_d12_the_longest_names_fit(storage: SqlAlchemyStorage) -> None:
    """Of four bytes per character; nothing is cut."""
    name, tenant = "😀" * 255, "😀" * 64
    async with storage.session_factory.begin() as session:
        await SqlAlchemyOutbox(session, tenant).add(
            name, 1, event_id=name, key=name, event_type=name, routing_key=name, schema_id=name
        )
    [entry] = await unsent(storage)
    assert {name} == {
        entry.envelope.topic,
        entry.envelope.event_id,
        entry.envelope.key,
        entry.envelope.event_type,
        entry.envelope.routing_key,
        entry.envelope.schema_id,
    }
    assert tenant == entry.envelope.tenant_id


async def test_fm_p06_payloads_up_to_the_limit(storage: SqlAlchemyStorage) -> None:
    """256 KiB of JSON, and the same of bytes."""
    largest = "x" * (256 * 1024 - 2)
    async with storage.session_factory.begin() as session:
        outbox = SqlAlchemyOutbox(session)
        await outbox.add("t", largest)
        await outbox.put(MessageEnvelope(topic="t", body=b"\x00" * 2**18, content_type="x/y"))
    first, second = await unsent(storage)
    assert largest == first.envelope.payload
    assert b"\x00" * 2**18 == second.envelope.body


async def test_fm_d14_instants_are_utc_whatever_the_server_thinks(
    storage: SqlAlchemyStorage, kept: Database
) -> None:
    """To the microsecond, and comparable with the database's own clock."""
    zone = "+05:30"
    moment = datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=timezone(timedelta(hours=-7)))
    async with storage.session_factory() as session:
        if kept.name == "mariadb":
            await session.execute(text(f"SET time_zone = '{zone}'"))
        elif kept.name != "sqlite":
            await session.execute(text(f"SET LOCAL timezone = '{zone}'"))
        record = await SqlAlchemyOutbox(session).add("t", 1, occurred_at=moment)
        await session.commit()
    found = await storage.outbox.get(record.id)
    assert found is not None
    assert moment == found.occurred_at
    assert abs(datetime.now(UTC) - found.created_at) < timedelta(minutes=1)
    assert moment == (await unsent(storage))[0].envelope.occurred_at


async def test_finding_06_numbers_are_never_reused(storage: SqlAlchemyStorage) -> None:
    """Not even those of the highest rows when they are deleted on acknowledgement."""
    seen: list[int] = []
    for _ in range(3):
        await add(storage, "t", "t")
        numbers = [entry.sequence for entry in await unsent(storage)]
        seen += numbers
        assert 2 == await storage.relay.acknowledge(numbers, keep=False)
    assert 6 == len(set(seen))
    assert sorted(seen) == seen


async def test_finding_06_the_database_issues_the_numbers(storage: SqlAlchemyStorage) -> None:
    """The primary key is the number, the id is unique, the index of lanes is there."""
    async with storage.engine.connect() as connection:
        found = await connection.run_sync(
            lambda sync: (
                inspect(sync).get_pk_constraint("outbox")["constrained_columns"],
                [u["column_names"] for u in inspect(sync).get_unique_constraints("outbox")],
                {i["name"]: i["column_names"] for i in inspect(sync).get_indexes("outbox")},
            )
        )
    primary, unique, indexes = found
    assert ["sequence"] == primary
    assert ["id"] in unique
    assert ["lane", "sequence"] == indexes["ix_outbox_lane"]
    assert "ix_outbox_available_at" in indexes


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_finding_06_a_sequence_with_a_cache_is_found(database: Database) -> None:
    """Each connection would number from its own cache: e1, e3, e2."""
    async with SqlAlchemyStorage(database.url) as storage:
        await storage.initialize()
        await storage.check()
        async with storage.engine.begin() as connection:
            await connection.execute(text("ALTER TABLE outbox ALTER sequence SET CACHE 20"))
        with pytest.raises(SchemaError, match=r"(?i)cache"):
            await storage.check()


async def test_fm_p10_clocks_do_not_order_events(storage: SqlAlchemyStorage) -> None:
    """Writers' clocks may go backwards: the numbers do not."""
    now = datetime.now(UTC)
    added = []
    for minutes in (5, 0, -5):
        added += await add(storage, "t", key="k", occurred_at=now + timedelta(minutes=minutes))
    assert added == await ids(storage)


async def test_fm_p10_the_databases_clock_does_not_order_events(
    storage: SqlAlchemyStorage,
) -> None:
    """It may be set back between two commits: the numbers decide."""
    added = []
    for _ in range(3):
        added += await add(storage, "t", key="k")
    async with storage.engine.begin() as connection:
        for hours, event_id in enumerate(added):
            past = datetime.now(UTC) - timedelta(hours=hours)
            await connection.execute(
                update(OutboxRecord).where(OutboxRecord.id == event_id).values(created_at=past)
            )
    assert added == await ids(storage)


async def test_fm_d09_numbers_do_not_run_out(storage: SqlAlchemyStorage, kept: Database) -> None:
    """They have 64 bits; SQLite's have that by any name."""
    async with storage.engine.connect() as connection:
        columns = await connection.run_sync(lambda sync: inspect(sync).get_columns("outbox"))
    kinds = {column["name"]: str(column["type"]).split("(")[0] for column in columns}
    assert ("INTEGER" if kept.name == "sqlite" else "BIGINT") == kinds["sequence"]


async def test_finding_13_the_order_key(storage: SqlAlchemyStorage) -> None:
    """The key, else the aggregate, else the routing key; one aggregate stays together."""
    async with storage.session_factory.begin() as session:
        outbox = SqlAlchemyOutbox(session)
        for options in (
            {"key": "k", "aggregate_id": "1", "routing_key": "r"},
            {"aggregate_id": "1", "aggregate_type": "Order", "routing_key": "order.created"},
            {"aggregate_id": "1", "aggregate_type": "Order", "routing_key": "order.paid"},
            {"aggregate_id": "1"},
            {"routing_key": "r"},
            {},
        ):
            await outbox.add("t", 1, **options)
    keys = ["k", "Order:1", "Order:1", "1", "r", None]
    rows = await shop.rows(storage)
    assert keys == [row.order_key for row in rows]
    assert rows[1].partition_no == rows[2].partition_no


async def test_finding_08_operators_may_use_plain_sql(storage: SqlAlchemyStorage) -> None:
    """`status = 'NEW'` revives a DEAD row at the next survey, at its old place."""
    first, second = await add(storage, "a", "b", key="k")
    await bury(storage, first)
    async with storage.engine.begin() as connection:
        await connection.execute(
            update(OutboxRecord).where(OutboxRecord.id == first).values(status="NEW", retry_count=0)
        )
    survey = await storage.relay.survey(PARTITIONS)
    assert (set(), 1) == (set(survey.blocked), survey.revived)
    assert [first, second] == await ids(storage)
    assert 0 == (await storage.relay.survey(PARTITIONS)).revived


async def test_a_schedule_that_plain_sql_removed(storage: SqlAlchemyStorage) -> None:
    """A scheduled row without its time is due."""
    [event_id] = await add(storage, "t", available_at=datetime.now(UTC) + timedelta(hours=1))
    async with storage.engine.begin() as connection:
        await connection.execute(update(OutboxRecord).values(available_at=None))
    moved, _ = await storage.relay.promote(PARTITIONS)
    assert 1 == len(moved)
    assert [event_id] == await ids(storage)


async def test_rows_that_plain_sql_inserted(storage: SqlAlchemyStorage, kept: Database) -> None:
    """A writer without this library need only give the seed's columns."""
    now = {"mariadb": "UTC_TIMESTAMP(6)", "sqlite": "'2024-01-02 03:04:05.000000'"}.get(
        kept.name, "now()"
    )
    async with storage.engine.begin() as connection:
        await connection.execute(
            text(
                "INSERT INTO outbox (id, tenant_id, topic, event_type, occurred_at, payload, "
                "content_type, event_metadata, created_at) VALUES ('raw-1', 'default', 't', 'Raw', "
                f"{now}, '[1]', 'application/json', '{{}}', {now})"
            )
        )
    [entry] = await storage.relay.fetch([Read(0, 0, 10)])
    assert ("raw-1", [1], None) == (
        entry.envelope.event_id,
        entry.envelope.payload,
        entry.envelope.order_key,
    )
    assert 1 == await storage.relay.acknowledge([entry.sequence], keep=True)


async def test_the_record_that_add_returns(storage: SqlAlchemyStorage) -> None:
    """Tells what will be written; the row read later is the same message."""
    async with storage.unit_of_work(tenant_id="acme") as uow:
        record = await uow.outbox.add("t", {"n": 1}, key="k", metadata={"a": "b"})
        await uow.commit()
    found = await storage.outbox.get(record.id)
    assert found is not None
    assert found.envelope() == record.envelope()
    assert ("NEW", 0) == (record.status, record.retry_count)
