"""A member of a group on JetStream.

Order comes from the server alone: each partition's consumer has `max_ack_pending=1`, so that the
next message of a partition is not delivered before the one before it was acked, whoever asks.
Who asks for which partition is a matter of fairness only, and members agree on it by gossip.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2s
from itertools import count
from typing import Any, Self
from uuid import uuid4

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as Interest
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from semel.errors import BusError, describe
from semel.transports.nats_delivery import Lane, NatsDelivery
from semel.transports.nats_members import HELLO_SECONDS, Members

_logger = logging.getLogger("semel.nats")
# One message per request: a server (2.9) that finds a request of somebody who left drops the
# redelivery that it had in hand until `ack_wait` is over. While we hold a message none is open.
_REQUEST = json.dumps({"batch": 1, "expires": 5_000_000_000}).encode()
_ASK_SECONDS = 6.0
_CONFIRM_SECONDS = 5.0
_UNFIT = re.compile(r"[^A-Za-z0-9_-]")
_TROUBLE = (nats.errors.Error, OSError, TimeoutError)


class NatsSubscription:
    """Deliveries of one topic for one group; at most one per partition is open."""

    def __init__(
        self,
        client: Client,
        manager: JetStreamContext,
        *,
        api: str,
        stream: str,
        topic: str,
        group: str,
        subjects: Sequence[str],
        prefetch: int,
        ack_seconds: float,
    ) -> None:
        self._client = client
        self._manager = manager
        self._api = api
        self._stream = stream
        self.topic = topic
        self._subjects = subjects
        self._prefetch = prefetch
        self._ack_seconds = ack_seconds
        # A name's dots would be taken for the end of it, and others are refused.
        digest = blake2s(f"{topic}\0{group}".encode(), digest_size=6).hexdigest()
        name = f"{_UNFIT.sub('_', group)[:40]}-{digest}"
        self._lanes = [Lane(n, f"{name}-p{n}") for n in range(len(subjects))]
        self._id = uuid4().hex
        self._members = Members(client, f"_SEMEL.{stream}.{digest}", self._id, self._poke_now)
        self._ready: deque[NatsDelivery] = deque()
        self._open: set[NatsDelivery] = set()
        self._late: set[str] = set()  # acks that found no connection
        self._inbox = client.new_inbox()
        self._answers: dict[str, asyncio.Future[None]] = {}
        self._numbers = count()
        self._confirmations: Interest | None = None
        self._arrived = asyncio.Event()
        self._poke = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._reconnects = client.stats["reconnects"]
        self._beat_at = 0.0
        self._failure: BusError | None = None
        self._closed = False

    # Subscription

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> NatsDelivery:
        while not self._closed:
            if self._failure is not None:
                raise self._failure
            if self._ready and len(self._open) < self._prefetch:
                delivery = self._ready.popleft()
                self._open.add(delivery)
                return delivery
            self._arrived.clear()
            await self._arrived.wait()
        raise StopAsyncIteration

    def is_connected(self) -> bool:
        """Tell whether the broker is connected and may deliver."""
        return not self._closed and self._failure is None and self._client.is_connected

    async def lag(self) -> int | None:
        """Return how many messages the group has not acked."""
        try:
            infos = await asyncio.gather(
                *(self._manager.consumer_info(self._stream, lane.consumer) for lane in self._lanes)
            )
        except _TROUBLE as error:
            raise BusError(f"cannot read the lag: {describe(error)}") from error
        return sum((info.num_pending or 0) + (info.num_ack_pending or 0) for info in infos)

    async def close(self) -> None:
        """Stop; deliveries that were not acked go back to the broker. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._arrived.set()
        self._poke.set()
        if self._task is not None:
            # It ends by itself: cancelled, it might leave an interest behind.
            await asyncio.wait({self._task}, timeout=2)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        with suppress(*_TROUBLE):
            await self._members.leave()
            # Before anything is handed back: it must not come here again.
            await self._release(self._lanes)
            for lane in self._lanes:
                if lane.held is not None:
                    await self._client.publish(lane.held.reply, b"-NAK")
                    lane.held = None
            if self._client.is_connected:
                await self._client.flush(2)
            if self._confirmations is not None:
                await self._confirmations.unsubscribe()
        self._ready.clear()
        self._open.clear()

    async def start(self) -> None:
        """Create the group's consumers, or find them, and ask for messages."""
        await asyncio.gather(
            *(
                self._manager.add_consumer(
                    self._stream,
                    ConsumerConfig(
                        durable_name=lane.consumer,
                        filter_subject=subject,
                        deliver_policy=DeliverPolicy.ALL,
                        ack_policy=AckPolicy.EXPLICIT,
                        ack_wait=self._ack_seconds,
                        max_ack_pending=1,
                        max_deliver=-1,
                    ),
                )
                for lane, subject in zip(self._lanes, self._subjects, strict=True)
            )
        )
        self._confirmations = await self._client.subscribe(f"{self._inbox}.*", cb=self._confirmed)
        await self._members.join()
        await self._arrange()
        self._task = asyncio.create_task(self._keep(), name=f"semel-nats-{self.topic}")

    # Deliveries

    async def confirm(self, delivery: NatsDelivery, word: bytes = b"+ACK") -> None:
        """Ack, and wait until the server says that it knows."""
        self._settle(delivery)
        try:
            if not self._client.is_connected:
                raise BusError("there is no connection to NATS: the ack is repeated when it is")
            inbox, number = self._inbox, str(next(self._numbers))
            answer = self._answers[number] = asyncio.get_running_loop().create_future()
            try:
                await self._client.publish(delivery.reply, word, f"{inbox}.{number}")
                # The next message comes with the answer, not a round trip after it.
                await self._ask_again(delivery.lane)
                async with asyncio.timeout(_CONFIRM_SECONDS):
                    await answer
            finally:
                del self._answers[number]
        except (BusError, *_TROUBLE) as error:
            self._late.add(delivery.reply)
            raise BusError(f"the ack is not confirmed: {describe(error)}") from error

    async def _confirmed(self, message: Msg) -> None:
        answer = self._answers.get(message.subject.rpartition(".")[2])
        if answer is not None and not answer.done():
            answer.set_result(None)

    async def hand_back(self, delivery: NatsDelivery, delay: float) -> None:
        """Ask for the message again."""
        self._settle(delivery)
        word = b"-NAK"
        if delay > 0:
            word += b" " + json.dumps({"delay": int(delay * 1e9)}).encode()
        try:
            await self._client.publish(delivery.reply, word)
            await self._ask_again(delivery.lane)
        except _TROUBLE as error:
            raise BusError(f"the nack was not sent: {describe(error)}") from error

    def _settle(self, delivery: NatsDelivery) -> None:
        if delivery not in self._open:
            raise BusError(
                "this delivery was acked or nacked before, or went back to the broker when its "
                "subscription closed"
            )
        self._open.discard(delivery)
        if delivery.lane.held is delivery:
            delivery.lane.held = None
        self._arrived.set()

    async def _receive(self, lane: Lane, interest: list[Interest], message: Msg) -> None:
        if not message.reply.startswith("$JS.ACK."):
            self._read_status(lane, message)
            return
        meta = message.metadata
        held = lane.held
        if held is not None and held.sequence == meta.sequence.stream:
            held.reply = message.reply  # it came again while we have it: our word was late
            return
        if self._closed or not interest or lane.interest is not interest[0]:
            await self._client.publish(message.reply, b"-NAK")
            return
        lane.held = NatsDelivery(self, lane, message, meta.sequence.stream, meta.num_delivered)
        self._ready.append(lane.held)
        self._arrived.set()

    def _read_status(self, lane: Lane, message: Msg) -> None:
        headers = message.headers or {}
        status, text = headers.get("Status"), headers.get("Description", "")
        if status == "100":
            return
        lane.asked_until = 0.0
        if status == "503" or (status == "409" and "Consumer Deleted" in text):
            self._fail(f"a consumer of the group is gone: {status} {text}")
        self._poke.set()

    # Housekeeping

    def _poke_now(self) -> None:
        self._poke.set()

    def _fail(self, text: str) -> None:
        # Whoever iterates hears it and subscribes again, which creates what is missing.
        self._failure = BusError(text)
        self._arrived.set()

    async def _keep(self) -> None:
        while self._failure is None and not self._closed:
            self._poke.clear()
            try:
                if self._client.is_closed:
                    self._fail("the connection to NATS was closed")
                elif self._client.is_connected:
                    await self._arrange()
                    await self._beat()
            except _TROUBLE as error:
                _logger.warning("%s: NATS is in trouble: %s", self.topic, describe(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(min(HELLO_SECONDS, self._ack_seconds / 3) / 2):
                    await self._poke.wait()

    async def _arrange(self) -> None:
        """Ask for the partitions that are ours, and leave the others to others."""
        await self._members.greet()
        if (reconnects := self._client.stats["reconnects"]) != self._reconnects:
            self._reconnects = reconnects
            for lane in self._lanes:
                lane.asked_until = 0.0  # a server forgets who asked when the connection ends
        members = self._members.present()
        others = [lane for lane in self._lanes if members[lane.number % len(members)] != self._id]
        await self._release([lane for lane in others if lane.interest is not None])
        now = asyncio.get_running_loop().time()
        for lane in self._lanes:
            if lane not in others and lane.held is None and now >= lane.asked_until:
                await self._ask(lane)

    async def _ask_again(self, lane: Lane) -> None:
        if lane.interest is not None and not self._closed:
            await self._ask(lane)

    async def _ask(self, lane: Lane) -> None:
        if lane.interest is None:
            # The callback learns by this list which of the lane's interests it serves.
            cell: list[Interest] = []
            lane.interest = await self._client.subscribe(
                self._client.new_inbox(), cb=partial(self._receive, lane, cell)
            )
            cell.append(lane.interest)
        lane.asked_until = asyncio.get_running_loop().time() + _ASK_SECONDS
        await self._client.publish(
            f"{self._api}.CONSUMER.MSG.NEXT.{self._stream}.{lane.consumer}",
            _REQUEST,
            reply=lane.interest.subject,
        )

    async def _release(self, lanes: Sequence[Lane]) -> None:
        """Ask no more; what was not handed out goes back, what was stays until it is acked."""
        leaving: list[Any] = []  # its drain() has no types
        for lane in lanes:
            if lane.interest is not None:
                leaving.append(lane.interest)
                lane.interest, lane.asked_until = None, 0.0
        # Without a connection there is nobody to say when the last message has come.
        connected = self._client.is_connected
        ends = (i.drain() if connected else i.unsubscribe() for i in leaving)
        await asyncio.gather(*ends, return_exceptions=True)
        for lane in lanes:
            held = lane.held
            if held is not None and held not in self._open and not self._closed:
                lane.held = None
                with suppress(ValueError):
                    self._ready.remove(held)
                await self._client.publish(held.reply, b"-NAK")

    async def _beat(self) -> None:
        """Say of what we hold that it is in progress, and repeat acks that got lost."""
        while self._late:
            await self._client.publish(self._late.pop(), b"+ACK")
        now = asyncio.get_running_loop().time()
        if now < self._beat_at:
            return
        self._beat_at = now + self._ack_seconds / 3
        for lane in self._lanes:
            if lane.held is not None:
                await self._client.publish(lane.held.reply, b"+WPI")
