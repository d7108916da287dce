"""Bugs that others made or might make, to be put into the code: the simulation must find them."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from semel import publishing, sending
from semel.dispatch import Item
from semel.errors import PublishError
from semel.handling import Handling
from semel.idempotency.claims import refusal
from semel.idempotency.functions import Idempotency
from semel.processing import InboxResult, Job, Outcome, Processor
from semel.relay import Entry
from semel.sending import DestinationError, Sender
from semel.sqlalchemy.idempotency import SqlAlchemyIdempotencyStore
from semel.sqlalchemy.relay import SqlAlchemyRelayStore
from semel.states import Admission, Verdict
from semel.window import Window

Results = Sequence[PublishError | None]


@dataclass(frozen=True, slots=True)
class Bug:
    """How to plant it, and which invariants it must be found by."""

    plant: Callable[[], None]
    found_by: tuple[str, ...]


def mark_before_publish() -> None:
    """SENT is written first: what the broker then does not take is lost."""
    original = Sender._call

    async def call(self: Sender, batch: Sequence[Entry]) -> Results:
        await self._store.acknowledge([entry.sequence for entry in batch], keep=True)
        return await original(self, batch)

    Sender._call = call  # type: ignore[method-assign]


def no_fence() -> None:
    """FAILED and DEAD are written without a look at the lease."""

    async def held(self: object, connection: object, instance: object, epochs: Any) -> set[int]:
        return set(epochs)

    SqlAlchemyRelayStore._held = held  # type: ignore[assignment,method-assign]


def unknown_is_success() -> None:
    """No answer is taken for a good one."""
    original = Sender._call

    async def call(self: Sender, batch: Sequence[Entry]) -> Results:
        try:
            results = await original(self, batch)
        except DestinationError:
            return [None] * len(batch)
        return [None if r is not None and r.kind == "unknown" else r for r in results]

    Sender._call = call  # type: ignore[method-assign]


def batch_as_a_whole() -> None:
    """If one event of a batch was confirmed, all are marked."""
    original = Sender._call

    async def call(self: Sender, batch: Sequence[Entry]) -> Results:
        results = await original(self, batch)
        return results if all(results) else [None] * len(batch)

    Sender._call = call  # type: ignore[method-assign]


def outage_counts() -> None:
    """Trouble with the broker is held against the events."""
    for module in (publishing, sending):
        module.is_trouble = lambda _result: False  # type: ignore[attr-defined]


def backoff_per_row() -> None:
    """An event that waits for its next attempt does not hold back its key."""

    def delay(self: Window, group: Sequence[Entry], due: float) -> None:
        head, *rest = group
        heapq.heappush(self._delayed, (due, head.sequence, head))
        if head.key is not None:
            self.free(head.key)
        self.give_back(rest)

    Window.delay = delay  # type: ignore[method-assign]


def inbox_apart() -> None:
    """The inbox row is committed before the handler runs."""

    async def once(self: Processor, job: Job) -> InboxResult:
        async with self._storage.unit_of_work(consumer_name=self.consumer_name) as uow:
            [admission] = await self._storage.gate(uow).admit([job.receipt])
            await uow.commit()
        if admission is not Admission.NEW:
            return InboxResult(outcome=Outcome.DUPLICATE)
        async with self._storage.unit_of_work(
            consumer_name=self.consumer_name, cause=job.message
        ) as uow:
            await job.run(uow)
            await uow.commit()
        return InboxResult(outcome=Outcome.PROCESSED)

    Processor._once = once  # type: ignore[method-assign]


def ack_first() -> None:
    """The broker is told that a message is done before it is."""
    original = Handling._attempt

    async def attempt(self: Handling, item: Item) -> None:
        await item.delivery.ack()
        await original(self, item)

    Handling._attempt = attempt  # type: ignore[method-assign]


def answer_apart() -> None:
    """The answer to a request is stored in another transaction than its effect."""
    original = SqlAlchemyIdempotencyStore.complete

    async def own(
        self: Idempotency, key: Any, fingerprint: str, function: Any, _uow: Any, *, kept: Any
    ) -> Any:
        store = self._storage.idempotency
        held = await store.claim(key, fingerprint=fingerprint, lease=self.lease, keep=self.keep)
        if held.answer is not None:
            return kept.value(held.answer.body)
        if held.verdict is not Verdict.CLAIMED:
            raise refusal(held.verdict)
        async with self._storage.unit_of_work() as uow:
            answer, value = kept.answer(await function(uow))
            await uow.commit()
        await original(store, held, answer, keep=self.keep)
        return value

    Idempotency._own = own  # type: ignore[method-assign]


BUGS = {
    "mark_before_publish": Bug(mark_before_publish, ("loss",)),
    "no_fence": Bug(no_fence, ("fencing",)),
    "unknown_is_success": Bug(unknown_is_success, ("loss", "order")),
    "batch_as_a_whole": Bug(batch_as_a_whole, ("loss", "order")),
    "outage_counts": Bug(outage_counts, ("charges",)),
    "backoff_per_row": Bug(backoff_per_row, ("order",)),
    "inbox_apart": Bug(inbox_apart, ("effect",)),
    "ack_first": Bug(ack_first, ("effect", "order")),
    "answer_apart": Bug(answer_apart, ("idempotency",)),
}
