"""The database bus: members, leases, positions and retention."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from sqlalchemy import delete, func, select, update

from semel.errors import BusError
from semel.sqlalchemy.bus_tables import BusGroup, BusMember, BusMessage
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.testing.contracts.harness import ids, message
from semel.transports.database import DatabaseMessageBus
from semel.wire import decode
from tests.services import Database, fresh_database
from tests.transports.database_bus import backends, count, expire, keyed, read, statements


@pytest.fixture(scope="module", params=backends("sqlite", "postgres", "mariadb"))
def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Database]:
    """One database per backend for all tests here: each has a topic of its own."""
    with fresh_database(request.param, tmp_path_factory.mktemp("bus")) as fresh:
        yield fresh


@pytest.fixture
async def storage(shared: Database) -> AsyncIterator[SqlAlchemyStorage]:
    async with SqlAlchemyStorage(shared.url) as storage:
        await storage.initialize()
        yield storage


sqlite = pytest.mark.parametrize("shared", backends("sqlite"), indirect=True)


@pytest.fixture
def topic() -> str:
    return f"t-{uuid4().hex}"


# Groups


async def test_a_dead_member_is_taken_over(storage, topic):
    """After the lease another member gets what the dead one held, not as a first delivery."""
    sent = keyed(topic, 3)
    async with DatabaseMessageBus(storage, lease_seconds=1) as bus:
        await bus.publish_many(sent)
        dead = await bus.subscribe(topic, group="group", prefetch=2)
        first = await anext(aiter(dead))
        await first.ack()
        await anext(aiter(dead))
        await asyncio.sleep(0.3)  # the ack is stored
        dead._task.cancel()  # as if the process were gone, without any clean-up
        async with await read(bus, topic) as reader:
            again = await reader.take(2)
            assert ids(sent[1:]) == [decode(each.wire).event_id for each in again]
            assert again[0].attempt > 1
            assert not dead.is_connected()


async def test_a_zombie_cannot_move_a_position(storage, topic):
    """A member whose lease was taken over stores nothing, and learns that it lost the log."""
    async with DatabaseMessageBus(storage, partitions=1, lease_seconds=1) as bus:
        await bus.publish_many(keyed(topic, 3))
        zombie = await bus.subscribe(topic, group="group")
        held = await anext(aiter(zombie))
        (log,) = zombie._share.logs.values()
        zombie._task.cancel()
        async with await read(bus, topic) as reader:
            await reader.take()
            store = bus._opened
            heir = reader.subscription.member
            for member, epoch in (
                (zombie.member, log.epoch),
                (zombie.member, log.epoch + 1),
                (heir, log.epoch),  # as after a loss that the owner has made good for itself
            ):
                mark = (log.partition_id, epoch, 3, 3)
                assert not await store.commit(member, [mark])
                assert not await store.commit(member, [mark], release=True)
            (seat,) = await store.seats(zombie.member)
            assert (0, heir.id) == (seat.position, seat.owner)
            with pytest.raises(BusError, match="lease"):
                await held.ack()


async def test_a_lease_that_was_lost_while_asleep(storage, topic):
    """A member that missed a take-over drops the log at its next statement."""
    async with DatabaseMessageBus(storage, partitions=1, lease_seconds=30) as bus:
        await bus.publish_many(keyed(topic, 2))
        sleeper = await bus.subscribe(topic, group="group", prefetch=1)
        held = await anext(aiter(sleeper))
        async with storage.engine.begin() as connection:
            await connection.execute(
                update(BusGroup)
                .where(BusGroup.owner == sleeper.member.id)
                .values(owner="other", epoch=BusGroup.epoch + 1)
            )
        await held.ack()
        async with asyncio.timeout(10):
            while sleeper.partitions:
                await asyncio.sleep(0.01)
        (seat,) = await bus._opened.seats(sleeper.member)
        assert (0, "other") == (seat.position, seat.owner)


async def test_clocks_do_not_order_messages(storage, topic):
    """The database's may be set back between two commits: positions decide."""
    sent = keyed(topic, 3)
    async with DatabaseMessageBus(storage, partitions=1) as bus:
        for each in sent:
            await bus.publish(each)
        async with storage.engine.begin() as connection:
            for position in range(3):
                past = datetime.now(UTC) - timedelta(hours=position)
                await connection.execute(
                    update(BusMessage)
                    .where(
                        BusMessage.partition_id.in_(await bus._opened.partitions(topic, count=1))
                    )
                    .where(BusMessage.position == position)
                    .values(created_at=past)
                )
        async with await read(bus, topic) as reader:
            assert ids(sent) == ids(await reader.messages(3))


@sqlite
async def test_a_group_is_deleted(storage, topic):
    """A subscription whose group an operator deleted ends, so that its consumer subscribes anew."""
    async with DatabaseMessageBus(storage, lease_seconds=1) as bus:
        reader = await read(bus, topic, f"g-{topic}")
        async with storage.engine.begin() as connection:
            await connection.execute(delete(BusGroup).where(BusGroup.group_name == f"g-{topic}"))
        await reader.ended()
        await bus.publish(message(topic))
        async with await read(bus, topic, f"g-{topic}") as reader:
            await reader.messages(1)


async def test_members_get_fair_shares(storage, topic):
    """Logs are spread evenly as members come and go, and none is read twice."""
    async with DatabaseMessageBus(storage, partitions=7, lease_seconds=3) as bus:
        members = [await bus.subscribe(topic, group="group") for _ in range(3)]

        async def shares(*sizes: int) -> None:
            async with asyncio.timeout(15):
                while sizes != tuple(sorted(len(m.partitions) for m in members)):
                    await asyncio.sleep(0.01)

        await shares(2, 2, 3)
        assert 7 == len(frozenset().union(*(member.partitions for member in members)))
        await members.pop().close()
        await shares(3, 4)
        members += [await bus.subscribe(topic, group="group") for _ in range(6)]
        await shares(0, 1, 1, 1, 1, 1, 1, 1)


async def test_clean_stop_counts_what_was_delivered(storage, topic):
    """After a clean stop what nobody was given is a first delivery, the rest is not."""
    async with DatabaseMessageBus(storage, partitions=1) as bus:
        await bus.publish_many(keyed(topic, 4))
        stopped = await bus.subscribe(topic, group="group", prefetch=2)
        iterator = aiter(stopped)
        first, second = await anext(iterator), await anext(iterator)
        await second.ack()
        await stopped.close()
        with pytest.raises(BusError, match="closed"):
            await first.ack()
        async with await read(bus, topic) as reader:
            again = await reader.take(4)
            assert [2, 2, 1, 1] == [delivery.attempt for delivery in again]


@sqlite
async def test_nack_keeps_the_order_of_the_key(storage, topic):
    """While a nacked message waits, later ones of its key wait too and others go on."""
    async with DatabaseMessageBus(storage, partitions=1) as bus:
        await bus.publish_many([*keyed(topic, 2), message(topic, key="other", payload="other")])
        async with await read(bus, topic, prefetch=1) as reader:
            (head,) = await reader.take()
            await head.nack(delay=0.4)
            payloads = [m.payload for m in await reader.messages(3)]
        assert ["other", 0, 1] == payloads
        with pytest.raises(BusError):
            await head.nack()


@sqlite
async def test_settled_once(storage, topic):
    """A delivery that was acked cannot be acked again, nor an old one of a message."""
    async with DatabaseMessageBus(storage) as bus, await read(bus, topic) as reader:
        await bus.publish(message(topic))
        (old,) = await reader.take()
        await old.nack()
        (new,) = await reader.take()
        with pytest.raises(BusError, match="before"):
            await old.ack()
        await new.ack()
        with pytest.raises(BusError, match="before"):
            await new.ack()


async def test_lag_counts_exactly(storage, topic):
    """The lag falls with each ack, whoever acks and before it is stored."""
    async with DatabaseMessageBus(storage, commit_seconds=60, lease_seconds=3) as bus:
        await bus.publish_many([message(topic, key=f"k{n}") for n in range(30)])
        async with await read(bus, topic) as reader:
            assert 30 == await reader.subscription.lag()
            deliveries = await reader.take(30)
            assert 30 == await reader.subscription.lag()
            for done, delivery in enumerate(reversed(deliveries), start=1):
                await delivery.ack()
                assert 30 - done == await reader.subscription.lag()
        async with await read(bus, topic, "other") as other:
            assert 30 == await other.subscription.lag()


@sqlite
async def test_a_topic_keeps_its_partitions(storage, topic):
    """Another setting changes nothing for a topic that exists: keys stay where they are."""
    async with DatabaseMessageBus(storage, partitions=3) as bus:
        await bus.publish(message(topic))
    async with DatabaseMessageBus(storage, partitions=8) as bus:
        await bus.publish_many([message(topic, key=f"k{n}") for n in range(20)])
        subscription = await bus.subscribe(topic, group="group")
        assert 3 == len(subscription.partitions)


@sqlite
async def test_a_new_group_at_the_end(storage, topic):
    """With from_beginning=False a new group gets only what comes; a known one goes on."""
    async with DatabaseMessageBus(storage, from_beginning=False) as bus:
        await bus.publish(message(topic))
        async with await read(bus, topic) as reader:
            assert 0 == await reader.subscription.lag()
        sent = message(topic)
        await bus.publish(sent)
        async with await read(bus, topic) as reader:
            assert [sent.event_id] == ids(await reader.messages(1))


# Retention


async def test_retention_waits_for_every_group(storage, topic):
    """What a group has not consumed is kept, however old; what all have consumed is deleted."""
    async with DatabaseMessageBus(storage, partitions=1, retention=timedelta(0)) as bus:
        sent = keyed(topic, 10)
        await bus.publish_many(sent)
        async with await read(bus, topic, "fast") as fast:
            await fast.messages(10)
        async with await read(bus, topic, "slow") as slow:
            await slow.messages(4)
        await bus.cleanup()
        assert 6 == await count(storage, topic)
        async with await read(bus, topic, "slow") as slow:
            assert ids(sent[4:]) == ids(await slow.messages(6))
        await bus.cleanup()
        assert 0 == await count(storage, topic)
        last = message(topic)
        await bus.publish(last)
        async with await read(bus, topic, "new") as new, await read(bus, topic, "fast") as fast:
            assert 1 == await new.subscription.lag()
            assert [last.event_id] == ids(await new.messages(1))
            assert [last.event_id] == ids(await fast.messages(1))


async def test_retention_keeps_what_is_young(storage, topic):
    """Consumed messages stay for the retention, so that a new group gets them."""
    async with DatabaseMessageBus(storage, partitions=1, retention=timedelta(hours=1)) as bus:
        await bus.publish_many(keyed(topic, 3))
        async with await read(bus, topic) as reader:
            await reader.messages(3)
        await bus.cleanup()
        async with await read(bus, topic, "new") as new:
            await new.messages(3)


async def test_retention_forgets_groups(storage, topic, caplog):
    """A group that was away for longer than its expiry holds nothing back, and is told so."""
    group = f"g-{topic}"
    async with DatabaseMessageBus(storage, partitions=1, retention=timedelta(0)) as bus:
        await bus.publish_many(keyed(topic, 5))
        async with await read(bus, topic, group) as reader:
            await reader.messages(1)
        await expire(storage, group, days=13)
        await bus.cleanup()
        assert 4 == await count(storage, topic)
        await expire(storage, group, days=15)
        await bus.cleanup()
        assert 0 == await count(storage, topic)
        sent = message(topic)
        await bus.publish(sent)
        async with await read(bus, topic, group) as reader:
            assert 1 == await reader.subscription.lag()
            assert [sent.event_id] == ids(await reader.messages(1))
    assert "missed 4 messages" in caplog.text


@sqlite
async def test_retention_deletes_in_batches(storage, topic, monkeypatch):
    """Each transaction deletes a bounded number of messages; members long gone go too."""
    monkeypatch.setattr("semel.transports.database._CLEANUP_ROWS", 10)
    async with DatabaseMessageBus(storage, partitions=1, retention=timedelta(0)) as bus:
        await bus.publish_many(keyed(topic, 35))
        gone = await bus.subscribe(topic, group="never")
        gone._task.cancel()
        await expire(storage, "never", days=15)
        async with storage.engine.begin() as connection:
            past = storage._database.later(-700.0)
            await connection.execute(update(BusMember).values(expires_at=past))
        with statements(storage) as seen:
            assert await bus.cleanup() >= 35
        assert seen["DELETE bus_message"] >= 4
        assert 0 == await count(storage, topic)
        async with storage.engine.connect() as connection:
            assert not await connection.scalar(select(func.count()).select_from(BusMember))


@sqlite
async def test_no_retention(storage, topic):
    """Without a retention nothing is ever deleted."""
    async with DatabaseMessageBus(storage, retention=None) as bus:
        await bus.publish(message(topic))
        assert 0 == await bus.cleanup()
        assert 1 == await count(storage, topic)
