"""Trouble on purpose, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.nodes import Node
    from tests.simulation.world import World

# A server ends a transaction that is left alone, or nobody else could write.
_IDLE_SECONDS = 1.0


class Nemesis:
    """Does what the plan says, one act after the other, each for a while."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = world.chance

    async def run(self) -> None:
        world, plan = self._world, self._world.plan
        for act in plan.acts:
            await asyncio.sleep(self._chance.expovariate(len(plan.acts) / plan.seconds))
            world.counts[act] += 1
            world.do(getattr(self, act)())

    def _some(self) -> Node:
        return self._chance.choice(list(self._world.nodes.values()))

    def _while(self) -> float:
        """Half a lease, a lease and a half, or several."""
        lease = self._world.plan.config.lease_seconds
        return lease * self._chance.choice((0.2, 0.5, 1.5, 3.0))

    async def crash(self) -> None:
        self._crash(self._some())

    async def crash_at_batch(self) -> None:
        """Between the broker's acceptance and the mark in the table."""
        self._trap("batch", self._crash)

    async def crash_at_commit(self) -> None:
        """Between a commit and what depends on it."""
        self._trap("commit", self._crash)

    async def freeze(self) -> None:
        self._freeze(self._some())

    async def freeze_at_batch(self) -> None:
        """While the answer is under way: it is read when the lease may be somebody else's."""
        self._trap("batch", self._freeze)

    async def freeze_at_failure(self) -> None:
        """Before FAILED is written; nobody else gets the event through meanwhile."""
        world = self._world

        def freeze(node: Node) -> None:
            self._freeze(node, 1.5 * world.plan.config.lease_seconds)
            world.do(self.topic_trouble("orders", 3.0 * world.plan.config.lease_seconds))

        self._trap("batch", lambda node: self._trap("begin", freeze, node.name))

    def _trap(self, name: str, act: Callable[[Node], None], whom: str | None = None) -> None:
        if self._world.hostile:
            self._world.traps[name] = (whom, act)

    def _crash(self, node: Node) -> None:
        if not node.dead:
            self._world.trace("nemesis", "crash", node.name)
            node.crash()
            self._world.broker.miss(node)
            self._world.do(self._replace(node))

    async def _replace(self, node: Node) -> None:
        await asyncio.sleep(self._chance.uniform(0.0, 3.0))
        self._world.start(node.name, node.role)

    def _freeze(self, node: Node, seconds: float | None = None) -> None:
        if node.running:
            seconds = self._while() if seconds is None else seconds
            self._world.trace("nemesis", "freeze", f"{node.name} for {seconds:.1f} s")
            node.freeze()
            self._world.broker.miss(node)
            self._world.do(self._thaw(node, seconds))

    async def _thaw(self, node: Node, seconds: float) -> None:
        await asyncio.sleep(min(seconds, _IDLE_SECONDS))
        node.end_connections(idle_only=True)
        await asyncio.sleep(max(0.0, seconds - _IDLE_SECONDS))
        if not node.dead:
            self._world.trace("nemesis", "thaw", node.name)
            node.thaw()

    async def restart(self) -> None:
        """A rolling deployment: stop as asked, then start anew."""
        world, node = self._world, self._some()
        if node.projector is None or not node.running:
            return
        world.trace("nemesis", "restart", node.name)
        await asyncio.wait({node.spawn(node.projector.stop())}, timeout=5.0)
        if world.nodes[node.name] is node:
            node.crash()
            world.start(node.name, node.role)

    async def cut_database(self) -> None:
        node = self._some()
        self._world.trace("nemesis", "cut database", node.name)
        node.link.is_cut = True
        await asyncio.sleep(_IDLE_SECONDS)
        node.end_connections(idle_only=True)
        await asyncio.sleep(self._while())
        node.link.is_cut = False

    async def cut_broker(self) -> None:
        world, node = self._world, self._some()
        world.trace("nemesis", "cut broker", node.name)
        node.wire.is_cut = True
        world.broker.miss(node)
        await asyncio.sleep(self._while())
        node.wire.is_cut = False
        world.broker.wake()

    async def outage(self) -> None:
        """The broker is away, for everybody."""
        world = self._world
        world.trace("nemesis", "outage", "of the broker")
        world.down.add("broker")
        await asyncio.sleep(self._chance.uniform(1.0, 10.0))
        world.down.discard("broker")
        world.broker.wake()

    async def database_restart(self) -> None:
        world = self._world
        world.trace("nemesis", "outage", "of the database")
        world.down.add("database")
        for node in world.nodes.values():
            node.end_connections()
        await asyncio.sleep(self._chance.uniform(0.1, 3.0))
        world.down.discard("database")

    async def topic_trouble(self, topic: str | None = None, seconds: float | None = None) -> None:
        """Somebody deleted the topic, and makes it again."""
        world = self._world
        topic = topic or self._chance.choice(("orders", "followups"))
        world.trace("nemesis", "topic", f"{topic} is missing")
        world.broker.troubled_topics.add(topic)
        await asyncio.sleep(seconds or self._chance.uniform(0.5, 6.0))
        world.broker.troubled_topics.discard(topic)

    async def requeue(self) -> None:
        await self._world.call_operator(requeue_dead)


async def requeue_dead(node: Node) -> None:
    """An operator has DEAD events sent again; the broker takes them now."""
    world = node.world
    ids = [row[0] for row in world.read("SELECT id FROM outbox WHERE status = 'DEAD'")]
    if ids:
        world.broker.refused.update(dict.fromkeys(ids, False))
        number = await node.storage.outbox.requeue(ids, actor="operator")
        node.trace("requeue", f"{number} of {len(ids)}")
