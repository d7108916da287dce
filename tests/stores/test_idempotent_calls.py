"""Functions and commands that run once per key."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from semel import (
    CommandBus,
    ConfigurationError,
    Idempotency,
    IdempotencyConflictError,
    IdempotencyKeyMissingError,
    IdempotencyMismatchError,
    SerializationError,
    SqlAlchemyStorage,
    TransactionMisuseError,
    UnitOfWork,
    idempotent,
)
from tests.stores import shop


@dataclass(frozen=True)
class Place:
    order_id: str
    cents: int = 5


@dataclass(frozen=True)
class Placed:
    order_id: str
    number: int


class Desk:
    """Writes orders, and counts how often it is asked to."""

    def __init__(self) -> None:
        self.calls = 0

    async def place(self, uow: Any) -> dict[str, int]:
        self.calls += 1
        uow.session.add(shop.Order(id=f"o-{self.calls}"))
        await uow.outbox.add("orders", {"n": self.calls})
        return {"number": self.calls}


async def test_a_function_runs_once(storage: SqlAlchemyStorage) -> None:
    """Whoever asks again gets the first result; effect, event and result commit together."""
    desk, idempotency = Desk(), Idempotency(storage)
    for _ in range(3):
        assert {"number": 1} == await idempotency.run("k", desk.place)
    assert 1 == desk.calls
    assert {"o-1": "new"} == await shop.orders(storage)
    assert 1 == len(await shop.rows(storage))
    assert {"number": 2} == await idempotency.run("other", desk.place)
    assert {"number": 3} == await idempotency.run("k", desk.place, tenant_id="acme")
    assert {"number": 4} == await idempotency.run("k", desk.place, principal="bob")
    assert {"number": 5} == await idempotency.run("k", desk.place, name="other")


async def test_many_at_once(storage: SqlAlchemyStorage) -> None:
    desk, idempotency = Desk(), Idempotency(storage, wait=timedelta(seconds=60))
    results = await asyncio.gather(*(idempotency.run("k", desk.place) for _ in range(20)))
    assert [{"number": 1}] * 20 == results
    assert {"o-1": "new"} == await shop.orders(storage)


async def test_who_does_not_wait_is_told(storage: SqlAlchemyStorage) -> None:
    idempotency = Idempotency(storage, wait=timedelta(0))
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow() -> int:
        begun.set()
        await go.wait()
        return 1

    first = asyncio.create_task(idempotency.run("k", slow, name="slow"))
    await begun.wait()
    with pytest.raises(IdempotencyConflictError):
        await idempotency.run("k", slow, name="slow")
    go.set()
    assert 1 == await first == await idempotency.run("k", slow, name="slow")


async def test_an_exception_undoes_all_and_frees_the_key(storage: SqlAlchemyStorage) -> None:
    desk, idempotency = Desk(), Idempotency(storage)

    async def fails(uow: UnitOfWork) -> None:
        await desk.place(uow)
        raise shop.Boom

    with shop.interrupted():
        await idempotency.run("k", fails, name="place")
    assert {} == await shop.orders(storage)
    assert {"number": 2} == await idempotency.run("k", desk.place, name="place")


async def test_other_arguments(storage: SqlAlchemyStorage) -> None:
    desk, idempotency = Desk(), Idempotency(storage)
    await idempotency.run("k", desk.place, arguments={"a": 1, "b": 2})
    await idempotency.run("k", desk.place, arguments={"b": 2, "a": 1})
    with pytest.raises(IdempotencyMismatchError):
        await idempotency.run("k", desk.place, arguments={"a": 1})
    assert 1 == desk.calls


async def test_what_cannot_be_kept(storage: SqlAlchemyStorage) -> None:
    """A result that is no JSON, arguments that cannot be compared, keys that are none."""
    desk, idempotency = Desk(), Idempotency(storage)

    async def strange(uow: UnitOfWork) -> Any:
        await desk.place(uow)
        return object()

    with pytest.raises(SerializationError):
        await idempotency.run("k", strange)
    assert {} == await shop.orders(storage)
    with pytest.raises(SerializationError):
        await idempotency.run("k", desk.place, arguments=object())
    for key in ("", " ", "x" * 256):
        with pytest.raises(IdempotencyKeyMissingError):
            await idempotency.run(key, desk.place)
    assert {} == await shop.orders(storage)


async def test_a_result_that_cannot_be_made_again(storage: SqlAlchemyStorage) -> None:
    """It is found before the commit: no effect without a result, and the key may be used again."""
    desk, idempotency = Desk(), Idempotency(storage)

    async def ordered(uow: UnitOfWork) -> OrderedDict[str, int]:
        return OrderedDict(await desk.place(uow))

    with pytest.raises(SerializationError, match=r"no OrderedDict .* annotated with, dicts, lists"):
        await idempotency.run("k", ordered, name="place", returns=OrderedDict)
    async with storage.unit_of_work() as uow:
        with pytest.raises(SerializationError, match="cannot be made again"):
            await idempotency.run("k", ordered, name="place", returns=OrderedDict, uow=uow)
        await uow.commit()
    assert {} == await shop.orders(storage)
    assert {"number": 3} == await idempotency.run("k", ordered, name="place", returns=dict)


async def test_a_function_must_not_commit(storage: SqlAlchemyStorage) -> None:
    desk = Desk()

    async def commits(uow: UnitOfWork) -> None:
        await desk.place(uow)
        await uow.commit()

    with pytest.raises(TransactionMisuseError):
        await Idempotency(storage).run("k", commits)
    assert {} == await shop.orders(storage)


async def test_one_that_lost_its_key_is_undone(storage: SqlAlchemyStorage) -> None:
    """It was slower than its lease, and another one took over."""
    desk, go, begun = Desk(), asyncio.Event(), asyncio.Event()
    short = Idempotency(storage, lease=timedelta(microseconds=1))

    async def slow(uow: UnitOfWork) -> Any:
        begun.set()
        await go.wait()
        return await desk.place(uow)

    zombie = asyncio.create_task(short.run("k", slow, name="place"))
    await begun.wait()
    assert {"number": 1} == await Idempotency(storage).run("k", desk.place, name="place")
    go.set()
    with pytest.raises(IdempotencyConflictError):
        await zombie
    assert {"o-1": "new"} == await shop.orders(storage)


async def test_in_the_callers_transaction(storage: SqlAlchemyStorage) -> None:
    """The owner commits, or not; a failure leaves the rest of it usable."""
    desk, idempotency = Desk(), Idempotency(storage)
    async with storage.unit_of_work() as uow:
        assert {"number": 1} == await idempotency.run("k", desk.place, uow=uow)
    assert {} == await shop.orders(storage)
    async with storage.unit_of_work() as uow:
        assert {"number": 2} == await idempotency.run("k", desk.place, uow=uow)
        assert {"number": 2} == await idempotency.run("k", desk.place, uow=uow)

        async def fails(own: UnitOfWork) -> None:
            await desk.place(own)
            raise shop.Boom

        with shop.interrupted():
            await idempotency.run("k-2", fails, uow=uow)
        await uow.commit()
    assert {"number": 2} == await idempotency.run("k", desk.place)
    assert {"o-2": "new"} == await shop.orders(storage)
    assert 1 == len(await storage.idempotency.search())


async def test_the_decorator(storage: SqlAlchemyStorage) -> None:
    """The key is made of the arguments, which are compared; `uow` is given."""
    calls = 0

    @idempotent(storage, key=lambda order_id, **_: order_id)
    async def place(order_id: str, uow: UnitOfWork, *, cents: int = 5) -> Placed:
        nonlocal calls
        calls += 1
        uow.session.add(shop.Order(id=order_id))
        return Placed(order_id, calls)

    @idempotent(storage, key=lambda n: f"n-{n}")
    async def double(n: int) -> int:
        nonlocal calls
        calls += 1
        return 2 * n

    assert Placed("o-1", 1) == await place("o-1", cents=5)  # type: ignore[call-arg]
    assert Placed("o-1", 1) == await place(order_id="o-1")  # type: ignore[call-arg]
    with pytest.raises(IdempotencyMismatchError):
        await place("o-1", cents=6)  # type: ignore[call-arg]
    assert 14 == await double(7) == await double(7)
    assert 2 == calls
    assert {"o-1": "new"} == await shop.orders(storage)


async def test_commands(storage: SqlAlchemyStorage) -> None:
    """Once per key and type of command; the result has the type that the handler names."""
    commands, desk = CommandBus(storage), Desk()

    @commands.handler(Place)
    async def place(command: Place, uow: UnitOfWork) -> Placed:
        return Placed(command.order_id, (await desk.place(uow))["number"])

    async def execute(command: Place, **options: Any) -> Any:
        return await commands.execute(command, idempotency_key="k", **options)

    assert Placed("a", 1) == await execute(Place("a"))
    assert Placed("a", 1) == await execute(Place("a"))
    with pytest.raises(IdempotencyMismatchError):
        await execute(Place("b"))
    async with storage.unit_of_work() as uow:
        assert Placed("a", 1) == await execute(Place("a"), uow=uow)
        assert Placed("b", 2) == await execute(Place("b"), uow=uow, principal="bob")
    assert Placed("b", 3) == await execute(Place("b"), principal="bob")
    assert Placed("a", 4) == await commands.execute(Place("a"))
    assert {"o-1", "o-3", "o-4"} == set(await shop.orders(storage))


@pytest.mark.parametrize("kept", ["sqlite"], indirect=True)
async def test_wrong_wiring(storage: SqlAlchemyStorage) -> None:
    with pytest.raises(ConfigurationError):
        Idempotency(storage, lease=timedelta(0))
    commands = CommandBus()
    commands.handler(str)(lambda command: command)
    async with storage.unit_of_work() as uow:
        with pytest.raises(ConfigurationError, match="CommandBus"):
            await commands.execute("x", uow, idempotency_key="k")
