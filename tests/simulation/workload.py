"""What the service does: requests that must take effect once, events in order, handlers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import text

from semel import (
    EventConsumer,
    MessageEnvelope,
    OutboxProjector,
    SqlAlchemyStorage,
    SQLAlchemyUnitOfWork,
)
from semel.errors import IdempotencyMismatchError
from semel.idempotency import Idempotency
from tests.simulation.broker import Bus
from tests.simulation.driver import engine_for
from tests.simulation.plan import LEASE

if TYPE_CHECKING:
    from tests.simulation.nodes import Node
    from tests.simulation.world import World

ORDERS, FOLLOWUPS = "orders", "followups"
_PATIENCE = 6.0


class HandlerError(Exception):
    """The handler fails, for no reason of the database's."""


@dataclass(slots=True)
class Request:
    """What a client wants once, however often it asks."""

    name: str
    kind: str
    key: str | None
    events: int
    answers: list[Any] = field(default_factory=list)
    mismatched: bool = False
    done: bool = False


async def run_relay(node: Node) -> None:
    storage = node.storage = SqlAlchemyStorage(engine_for(node))
    node.projector = OutboxProjector(
        store=storage.relay,
        message_bus=Bus(node),
        tenant_id=None,
        config=node.world.plan.config,
    )
    node.world.instances[node.projector._tenure.instance.id] = node.name
    await node.projector.run_forever()


async def run_consumer(node: Node) -> None:
    world = node.world
    storage = node.storage = SqlAlchemyStorage(engine_for(node))
    consumer = EventConsumer(
        "effects",
        ORDERS,
        bus=Bus(node),
        storage=storage,
        concurrency=3,
        prefetch=20,
        batch_size=world.plan.batch_size,
        retry=world.plan.retry,
    )

    @consumer.on("Placed")
    async def place(message: MessageEnvelope, uow: SQLAlchemyUnitOfWork) -> None:
        await handle(node, message, uow)

    await consumer.start()
    await asyncio.Event().wait()


async def handle(node: Node, message: MessageEnvelope, uow: SQLAlchemyUnitOfWork) -> None:
    """Have an effect, cause another event, and fail now and then."""
    world, event_id = node.world, message.event_id
    node.trace("handle", world.name_of(event_id))
    await uow.session.execute(
        text("INSERT INTO sim_effect (event_id, key) VALUES (:id, :key)"),
        {"id": event_id, "key": message.key},
    )
    await asyncio.sleep(world.chance.random() / 10)
    if event_id not in world.stubborn:
        world.stubborn[event_id] = node.link.strikes("handler_stubborn")
    if world.stubborn[event_id]:
        raise HandlerError("never")
    if world.handler_failures[event_id] < 2 and node.link.strikes("handler_fails"):
        world.handler_failures[event_id] += 1
        raise HandlerError("not now")
    if message.payload["number"] % 3 == 0:
        await add_event(world, uow, FOLLOWUPS, message.key, message.payload["number"])


async def add_event(
    world: World, uow: SQLAlchemyUnitOfWork, topic: str, key: str | None, number: int
) -> None:
    """Add an event, and its line in the book of what was really committed."""
    record = await uow.outbox.add(topic, {"number": number}, key=key, event_type="Placed")
    world.name_of(record.id)
    await uow.session.execute(
        text("INSERT INTO sim_ledger (event_id, topic, key) VALUES (:id, :topic, :key)"),
        {"id": record.id, "topic": topic, "key": key},
    )


async def serve(node: Node, request: Request, amount: int) -> Any:
    """One execution of a request, in a process of the service."""
    if node.storage is None:
        node.storage = SqlAlchemyStorage(engine_for(node))
    storage, world = node.storage, node.world

    async def work(uow: SQLAlchemyUnitOfWork) -> dict[str, Any]:
        for number in range(request.events):
            await add_event(world, uow, ORDERS, request.key, number)
            await asyncio.sleep(world.chance.random() / 50)
        done = await uow.session.execute(
            text("INSERT INTO sim_execution (request) VALUES (:name) RETURNING position"),
            {"name": request.name},
        )
        return {"execution": done.scalar_one()}

    if request.kind == "idempotent":
        idempotency = Idempotency(storage, lease=LEASE, wait=timedelta(seconds=1))
        return await idempotency.run(request.name, work, name="pay", arguments=amount)
    async with storage.unit_of_work() as uow:
        answer = await work(uow)
        if request.kind != "abandoned":
            await uow.commit()
    return answer


async def ask(world: World, request: Request, amount: int = 1) -> Any:
    """Send a request to some process; raises if there was no answer in time."""
    node = world.chance.choice([n for n in world.nodes.values() if n.role == "api"])
    task = node.spawn(serve(node, request, amount))
    done, _ = await asyncio.wait({task}, timeout=_PATIENCE)
    if not done:
        raise TimeoutError
    answer = task.result()
    world.trace("client", "answer", f"{request.name} {answer}")
    return answer


async def client(world: World, request: Request) -> None:
    """Ask until there is an answer; then again, once as before and once for something else."""
    wanted = 1 if request.kind == "idempotent" else 0
    while len(request.answers) <= wanted:
        try:
            request.answers.append(await ask(world, request))
        except Exception as error:  # noqa: BLE001  clients see all kinds
            world.trace("client", "error", f"{request.name} {type(error).__name__}")
            if request.kind != "idempotent":
                break  # the ledger knows whether it took effect
            await asyncio.sleep(world.chance.uniform(0.1, 1.0))
        else:
            if request.kind != "idempotent":
                break
    while request.kind == "idempotent" and not request.mismatched:
        try:
            request.answers.append(await ask(world, request, amount=2))
        except IdempotencyMismatchError:
            request.mismatched = True
        except Exception as error:  # noqa: BLE001  as above
            world.trace("client", "error", f"{request.name} {type(error).__name__}")
            await asyncio.sleep(0.5)
        else:
            break
    request.done = True


async def clients(world: World) -> None:
    """Many at the same time; some requests are sent by two clients at once."""
    plan, chance = world.plan, world.chance
    for number in range(plan.requests):
        await asyncio.sleep(chance.expovariate(plan.requests / plan.seconds))
        key = f"key-{chance.randrange(plan.keys)}" if chance.random() < 0.9 else None
        kind = chance.choice(("idempotent", "idempotent", "plain", "abandoned"))
        request = Request(f"request-{number}", kind, key, chance.randint(1, 4))
        world.requests.append(request)
        twins = 2 if kind == "idempotent" and chance.random() < 0.3 else 1
        for _ in range(twins):
            world.do(client(world, request))
