"""A broker that loses, repeats, delays and refuses, on the in-memory one's groups and lanes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from semel import InMemoryMessageBus
from semel.errors import BusError, PublishError
from semel.protocols import Delivery
from semel.transports.base import Outcomes
from semel.transports.memory import _Group, _Subscription
from semel.wire import WireMessage

if TYPE_CHECKING:
    from tests.simulation.nodes import Node
    from tests.simulation.world import World

_SESSION_SECONDS = 2.0
Batch = Sequence[tuple[int, WireMessage]]


class Broker(InMemoryMessageBus):
    """The server: what it has accepted, and what it told whom."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._chance = world.chance
        #: (topic, key, id) of everything accepted, in order.
        self.log: list[tuple[str, str | None, str]] = []
        #: What dead letters are about.
        self.letters: list[str] = []
        #: How often each event was answered with something that may count against it.
        self.blame: Counter[str] = Counter()
        self.refused: dict[str, bool] = {}
        self.troubled_topics: set[str] = set()

    def accept(self, node: Node, batch: Batch, outcomes: Outcomes, answer: Any) -> None:
        """Take a batch from the wire, whatever became of its sender; then answer, or do not."""
        wire = node.wire
        if not wire.is_up and "broker" in self._world.down:
            self._reply(answer, BusError("the broker is down"))
            return
        last = self._chance.randrange(len(batch)) if wire.strikes("batch_cut") else len(batch)
        for position, (index, message) in enumerate(batch):
            if position >= last:
                self._reply(answer, BusError("the connection was lost in mid-batch"))
                return
            if outcomes.admits(index):
                error = self._take(node, message)
                if error is not None:
                    outcomes.fail(index, error)
        self._wake_all()
        self._world.spring("batch", node)
        if not wire.strikes("broker_silent"):
            self._reply(answer, None)

    def _take(self, node: Node, message: WireMessage) -> PublishError | None:
        event_id, strikes = message.headers["message_id"], node.wire.strikes
        error: PublishError | None = None
        if event_id not in self.refused:
            self.refused[event_id] = strikes("refused_for_good")
        if self.refused[event_id]:
            error = PublishError("refused", kind="permanent")
        elif message.topic in self.troubled_topics:
            error = PublishError("no such topic", kind="destination")
        elif self.blame[event_id] < 3 and ("batch" in self._world.traps or strikes("rejected")):
            error = PublishError("not now", kind="transient")
        elif strikes("dropped"):
            error = PublishError("no answer", kind="unknown")
        else:
            self._keep(node, message)
            if strikes("unconfirmed"):
                error = PublishError("no answer", kind="unknown")
        if error is not None:
            self.blame[event_id] += 1
            node.trace("outcome", f"{self._world.name_of(event_id)} {error.kind}")
        return error

    def _keep(self, node: Node, message: WireMessage) -> None:
        event_id = message.headers["message_id"]
        self.log.append((message.topic, message.key, event_id))
        node.trace("arrived", f"{message.topic} {message.key} {self._world.name_of(event_id)}")
        if (about := message.headers.get("meta_dead_letter_id")) is not None:
            self.letters.append(about)
        self._append(message, 1)
        for group in self._groups.get(message.topic, {}).values():
            lane = group._lanes.get(message.key or "")
            if lane is not None and node.wire.strikes("delayed"):
                lane.delayed += 1
                self._world.loop.outside(self._chance.uniform(0.1, 2.0), group._due, lane)
            if node.wire.strikes("duplicated"):
                self._world.loop.outside(
                    self._chance.uniform(0.0, 3.0), self._repeat, group, message
                )

    def _repeat(self, group: _Group, message: WireMessage) -> None:
        group.add(message)
        group.wake()

    def _reply(self, answer: asyncio.Future[None], error: BusError | None) -> None:
        if not answer.done():
            if error is None:
                answer.set_result(None)
            else:
                answer.set_exception(error)

    @property
    def backlog(self) -> int:
        """How many messages its groups have not acknowledged."""
        return sum(group.size for groups in self._groups.values() for group in groups.values())

    def wake(self) -> None:
        """Let everybody look again: who is reachable has changed."""
        self._wake_all()

    def miss(self, node: Node) -> None:
        """Wait for a sign of *node* for a while, then give its messages to others."""
        self._world.loop.outside(_SESSION_SECONDS, self._expel, node)

    def _expel(self, node: Node) -> None:
        if not node.is_reachable:
            for member in list(node.members):
                member.expel()


class Bus(InMemoryMessageBus):
    """A node's client."""

    def __init__(self, node: Node) -> None:
        super().__init__()
        self._node = node
        self._server = node.world.broker

    async def ping(self) -> None:
        await self._node.wire.travel()

    async def _send(self, batch: Batch, outcomes: Outcomes) -> None:
        try:
            await self._exchange(batch, outcomes)
        except BaseException:
            # Trouble of an event that was sent alone, without an outage, may count against it.
            if len(batch) == 1 and self._node.wire.is_up:
                self._server.blame[batch[0][1].headers["message_id"]] += 1
            raise

    async def _exchange(self, batch: Batch, outcomes: Outcomes) -> None:
        node, loop = self._node, self._node.loop
        await node.wire.travel()
        answer: asyncio.Future[None] = loop.create_future()
        delay = node.world.chance.random() / 50
        loop.outside(delay, self._server.accept, node, batch, outcomes, answer)
        await answer
        if delay < 0.01:
            await node.wire.travel(back=True)

    async def _subscribe(self, topic: str, group: str, prefetch: int) -> Member:
        await self._node.wire.travel()
        served = await self._server._subscribe(topic, group, prefetch)
        served._group.members.remove(served)
        return Member(self._node, served._group, prefetch)


class Member(_Subscription):
    """A node's place in a group; the server may give it to others."""

    def __init__(self, node: Node, group: _Group, prefetch: int) -> None:
        super().__init__(group, prefetch)
        self._node = node
        node.members.append(self)

    async def __anext__(self) -> Delivery:
        delivery = await super().__anext__()
        await asyncio.sleep(self._node.world.chance.random() / 50)
        return delivery

    def is_connected(self) -> bool:
        return not self._closed and self._node.wire.is_up

    def expel(self) -> None:
        """Close it from the server's side."""
        if self in self._node.members:
            self._node.members.remove(self)
        try:
            super().close().send(None)
        except StopIteration:
            self._node.trace("expelled", "from its group")

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.expel()

    def settle(self, entry: Any, attempt: int, *, again: bool, delay: float = 0.0) -> None:
        node = self._node
        lost = not again and (not node.wire.is_up or node.wire.strikes("ack_lost"))
        # A connection on which an acknowledgement got lost is broken, and soon found to be.
        if lost:
            node.loop.outside(0.5, self.expel)
        if lost and (not node.wire.is_up or node.world.chance.random() < 0.5):
            raise BusError("the acknowledgement was lost")
        super().settle(entry, attempt, again=again, delay=delay)
        if lost:
            raise BusError("the answer to the acknowledgement was lost")
