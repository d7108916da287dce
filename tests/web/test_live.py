"""Live events: who sees what, what happens to those who are slow, and how one goes on."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import delete, update

from semel import ConfigurationError, Hub, InMemoryMessageBus, SqlAlchemyStorage
from semel.asgi.live import LiveEvents
from semel.sqlalchemy.bus_tables import BusMessage, BusPartition
from semel.transports.database import DatabaseMessageBus
from tests.proxy import Proxy
from tests.services import Database
from tests.web.serving import everything, publish, serving
from tests.web.streams import PATIENCE, Client, parse


async def test_events_arrive_in_order_on_every_database(database: Database) -> None:
    """What is published after a client has come reaches it, with its facts and its payload."""
    async with SqlAlchemyStorage(database.url) as storage:
        await storage.initialize()
        async with serving(storage) as (hub, live), Client(live) as client:
            await client.ready()
            await publish(hub, *range(25), event_type="OrderPlaced")
            await client.until(lambda: len(client.payloads) == 25)

    assert list(range(25)) == client.payloads
    first = client.events[0].data
    assert ("OrderPlaced", "orders") == (first["type"], first["topic"])
    assert {"id", "type", "topic", "time", "data"} == first.keys()
    assert "text/event-stream; charset=utf-8" == client.answer_headers["content-type"]
    assert "no-store" in client.answer_headers["cache-control"]


async def test_a_new_client_begins_now(semel_storage: SqlAlchemyStorage) -> None:
    """Without an id there is no history."""
    async with serving(semel_storage) as (hub, live):
        await publish(hub, "old")
        async with Client(live) as client:
            await client.ready()
            await publish(hub, "new")
            await client.until(lambda: bool(client.payloads))

    assert ["new"] == client.payloads


async def test_many_clients_share_one_reader(semel_storage: SqlAlchemyStorage) -> None:
    """A hundred clients get everything; the bus is read once for all of them."""
    async with serving(semel_storage) as (hub, live):
        bus: Any = hub.bus
        reads = 0
        read = bus.read

        async def counted(*args: Any, **options: Any) -> Any:
            nonlocal reads
            reads += 1
            return await read(*args, **options)

        bus.read = counted
        clients = [await Client(live).__aenter__() for _ in range(100)]
        for client in clients:
            await client.ready()
        assert 100 == live.clients
        for number in range(20):
            await publish(hub, number)
        for client in clients:
            await client.until(lambda client=client: len(client.payloads) == 20)
        for client in clients:
            await client.__aexit__()
        assert 0 == live.clients

    assert all(client.payloads == list(range(20)) for client in clients)
    assert 20 >= reads


async def test_a_slow_client_is_told_and_slows_nobody(semel_storage: SqlAlchemyStorage) -> None:
    """One that does not read loses what is too much, and learns it; the other has everything."""
    async with (
        serving(semel_storage, keep=10, replay=50) as (hub, live),
        Client(live) as quick,
        Client(live) as slow,
    ):
        await quick.ready()
        await slow.ready()
        slow.rest()
        for number in range(100):
            await publish(hub, number)
            await quick.until(lambda number=number: quick.payloads[-1:] == [number])
        assert not slow.payloads
        slow.read()
        await slow.until(lambda: slow.payloads[-1:] == [99])
        await publish(hub, "after")
        await slow.until(lambda: slow.payloads[-1:] == ["after"])

    assert list(range(100)) == quick.payloads[:100]
    assert 0 == quick.losses
    assert 1 == slow.losses
    assert [*range(90, 100), "after"] == slow.payloads[-11:]
    under_way = slow.payloads[:-11]
    assert len(under_way) < 10
    assert list(range(len(under_way))) == under_way


async def test_a_client_that_pauses_catches_up(semel_storage: SqlAlchemyStorage) -> None:
    """Behind what is kept in memory, but not too far: nothing is lost."""
    async with (
        serving(semel_storage, keep=10) as (hub, live),
        Client(live) as quick,
        Client(live) as slow,
    ):
        await quick.ready()
        await slow.ready()
        slow.rest()
        await publish(hub, *range(300))
        await quick.until(lambda: len(quick.payloads) == 300)
        slow.read()
        await slow.until(lambda: len(slow.payloads) == 300)

    assert list(range(300)) == quick.payloads == slow.payloads
    assert 0 == quick.losses == slow.losses


async def test_resume_from_memory_and_from_the_log(semel_storage: SqlAlchemyStorage) -> None:
    """A client that comes back gets what it missed: kept in memory, or read again."""
    async with serving(semel_storage, keep=5) as (hub, live):
        async with Client(live) as client:
            await client.ready()
            await publish(hub, 0)
            await client.until(lambda: client.payloads == [0])
        await publish(hub, 1, 2)
        async with Client(live, headers={"Last-Event-ID": client.place}) as soon:
            await soon.until(lambda: len(soon.payloads) == 2)
        async with Client(live) as watcher:
            await watcher.ready()
            await publish(hub, *range(3, 60))
            await watcher.until(lambda: watcher.payloads[-1:] == [59])
        async with Client(live, query={"last_event_id": client.place}) as late:
            await late.until(lambda: len(late.payloads) == 59)
            await publish(hub, 60)
            await late.until(lambda: late.payloads[-1:] == [60])

    assert [1, 2] == soon.payloads
    assert list(range(1, 61)) == late.payloads
    assert 0 == soon.losses == late.losses


async def test_each_id_is_a_place(semel_storage: SqlAlchemyStorage) -> None:
    """Whichever event was the last that arrived, going on from it repeats and omits nothing."""
    async with serving(semel_storage) as (hub, live):
        async with Client(live) as client:
            await client.ready()
            for number in range(12):
                await publish(hub, number, key=f"k{number % 4}")
            await client.until(lambda: len(client.payloads) == 12)
        for index, event in enumerate(client.events):
            seen = client.payloads[: index + 1]
            async with Client(live, headers={"Last-Event-ID": str(event.id)}) as again:
                await again.until(
                    lambda seen=seen, again=again: len(again.payloads) >= 12 - len(seen)
                )
                await again.ready()
            assert sorted(seen + again.payloads) == list(range(12))
            assert 0 == again.losses


async def test_resume_in_a_new_process(semel_storage: SqlAlchemyStorage) -> None:
    """The place is in the id, not in a process: another one goes on from there."""
    async with serving(semel_storage) as (hub, live), Client(live) as client:
        await client.ready()
        await publish(hub, 0)
        await client.until(lambda: client.payloads == [0])
    async with serving(semel_storage) as (hub, live):
        await publish(hub, 1, 2, 3)
        async with Client(live, headers={"Last-Event-ID": client.place}) as again:
            await again.until(lambda: len(again.payloads) == 3)

    assert [1, 2, 3] == again.payloads
    assert 0 == again.losses


@pytest.mark.parametrize("given", ["nonsense", "1:2:3", "-1:5", "1:" + "9" * 40, "9" * 9000, "4:٣"])
async def test_an_id_that_is_none_of_ours(semel_storage: SqlAlchemyStorage, given: str) -> None:
    """It is no error: the client is told that it may have missed something, and goes on."""
    async with (
        serving(semel_storage) as (hub, live),
        Client(live, query={"last_event_id": given}) as client,
    ):
        await client.until(lambda: client.losses == 1)
        await client.ready()
        await publish(hub, "new")
        await client.until(lambda: client.payloads == ["new"])

    assert 200 == client.status


async def test_a_place_beyond_the_end(semel_storage: SqlAlchemyStorage) -> None:
    """After the database was set back, a client is not left waiting for a position to come."""
    async with serving(semel_storage) as (hub, live):
        async with Client(live) as client:
            await client.ready()
        ahead = ",".join(f"{part.partition(':')[0]}:1000" for part in client.place.split(","))
        async with Client(live, headers={"Last-Event-ID": ahead}) as again:
            await again.until(lambda: again.losses == 1)
            await again.ready()
            await publish(hub, "new")
            await again.until(lambda: again.payloads == ["new"])


async def test_a_database_that_is_set_back_while_we_run(semel_storage: SqlAlchemyStorage) -> None:
    """Restored under a running process: its clients are told, and get what comes then."""
    async with serving(semel_storage) as (hub, live), Client(live) as client:
        await client.ready()
        await publish(hub, *range(5))
        await client.until(lambda: len(client.payloads) == 5)
        async with semel_storage.engine.begin() as connection:
            await connection.execute(delete(BusMessage).where(BusMessage.position >= 2))
            await connection.execute(
                update(BusPartition).where(BusPartition.next_position > 2).values(next_position=2)
            )
        await client.until(lambda: client.losses == 1)
        await publish(hub, "after")
        await client.until(lambda: client.payloads[-1:] == ["after"])

    assert [0, 1, 2, 3, 4, "after"] == client.payloads


async def test_a_database_that_goes_away(postgres: Database) -> None:
    """Streams stay open with their heartbeats, and go on with what was published meanwhile."""
    async with (
        Proxy.before(postgres.url) as proxy,
        SqlAlchemyStorage(postgres.url) as admin,
        SqlAlchemyStorage(proxy.url) as storage,
    ):
        await admin.initialize()
        bus = DatabaseMessageBus(admin)
        async with serving(storage, heartbeat_seconds=0.1) as (_, live), Client(live) as client:
            await client.ready()
            proxy.refuse = True
            proxy.cut()
            elsewhere = Hub("elsewhere", storage=admin, bus=bus)
            await publish(elsewhere, *range(5))
            beats = len(parse(client.text))
            await client.until(lambda: len(parse(client.text)) > beats + 3)
            assert not client.payloads
            proxy.refuse = False
            await client.until(lambda: len(client.payloads) == 5)
        await bus.close()

    assert [0, 1, 2, 3, 4] == client.payloads
    assert 0 == client.losses


async def test_what_retention_removed_is_told(semel_storage: SqlAlchemyStorage) -> None:
    """A place whose messages are deleted gives a notice, and what is still there."""
    bus = DatabaseMessageBus(semel_storage, retention=timedelta(0))
    async with serving(semel_storage, bus, keep=1) as (hub, live):
        async with Client(live) as client:
            await client.ready()
        await publish(hub, *range(5))
        await bus.cleanup()
        await publish(hub, 5, 6, 7)
        async with Client(live, headers={"Last-Event-ID": client.place}) as again:
            await again.until(lambda: len(again.payloads) == 3)

    assert [5, 6, 7] == again.payloads
    assert again.losses == 1


async def test_too_much_to_catch_up(semel_storage: SqlAlchemyStorage) -> None:
    """Beyond *replay* events the client is told to start over, and the database is spared."""
    async with serving(semel_storage, keep=5, replay=10) as (hub, live):
        async with Client(live) as client:
            await client.ready()
        async with Client(live) as watcher:
            await watcher.ready()
            await publish(hub, *range(100))
            await watcher.until(lambda: watcher.payloads[-1:] == [99])
        async with Client(live, headers={"Last-Event-ID": client.place}) as again:
            await again.until(lambda: again.payloads[-1:] == [99])

    assert 1 == again.losses
    assert [95, 96, 97, 98, 99] == again.payloads


async def test_a_bus_without_a_log_is_copied(semel_storage: SqlAlchemyStorage) -> None:
    """Resume works with every broker: what is streamed is kept in the database for a while."""
    async with serving(semel_storage, InMemoryMessageBus()) as (hub, live):
        async with Client(live) as client:
            await client.ready()
            await publish(hub, 0)
            await client.until(lambda: client.payloads == [0])
        assert "orders" == client.events[0].data["topic"]
    async with serving(semel_storage, InMemoryMessageBus()) as (hub, live):
        await publish(hub, 1, 2)
        async with Client(live, headers={"Last-Event-ID": client.place}) as again:
            await again.until(lambda: len(again.payloads) == 2)

    assert [1, 2] == again.payloads
    assert 0 == again.losses


def test_settings_are_checked(semel_storage: SqlAlchemyStorage) -> None:
    """Wrong settings say what to do."""
    hub = Hub("shop", storage=semel_storage)
    for options in ({"topics": []}, {"topics": "orders"}, {"keep": 0}, {"heartbeat_seconds": 0}):
        given: dict[str, Any] = {"topics": ["orders"], "authorize": everything, **options}
        with pytest.raises(ConfigurationError):
            LiveEvents(hub, given.pop("topics"), **given)


async def test_stop_ends_all_streams(semel_storage: SqlAlchemyStorage) -> None:
    """A stop closes every answer properly; who comes then is sent away for a moment."""
    async with serving(semel_storage) as (_, live):
        clients = [await Client(live).__aenter__() for _ in range(5)]
        for client in clients:
            await client.ready()
        live.stop()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(client.task for client in clients))
        assert all(client.ended for client in clients)
        async with Client(live) as late:
            pass

    assert 503 == late.status
    assert "retry-after" in late.answer_headers
