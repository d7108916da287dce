"""Bugs that are planted in a life, to show that the sweep finds them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from semel.relay import Entry
from semel.sending import Sender
from semel.sqlalchemy.gate import SqlAlchemyInboxGate
from semel.sqlalchemy.idempotency import SqlAlchemyIdempotencyStore
from semel.states import Admission, Claim


@contextmanager
def sent_before_it_is() -> Iterator[None]:
    """Events are marked SENT, and then published."""
    original = Sender._call

    async def call(self: Any, batch: Sequence[Entry]) -> Any:
        await self._store.acknowledge([entry.sequence for entry in batch], keep=True)
        return await original(self, batch)

    with patch.object(Sender, "_call", call):
        yield


@contextmanager
def inbox_without_memory() -> Iterator[None]:
    """A message that the inbox knows is new, again."""
    original = SqlAlchemyInboxGate._collided

    def collided(*args: Any) -> Admission:
        found = original(*args)
        return Admission.NEW if found is Admission.DUPLICATE else found

    with patch.object(SqlAlchemyInboxGate, "_collided", collided):
        yield


@contextmanager
def answer_apart() -> Iterator[None]:
    """The effect of a function commits first, its result in a transaction of its own."""
    original = SqlAlchemyIdempotencyStore.complete

    async def complete(self: Any, held: Claim, *args: Any, **options: Any) -> None:
        if held.key.method == "CALL" and (session := options.pop("session", None)) is not None:
            await session.commit()
        await original(self, held, *args, **options)

    with patch.object(SqlAlchemyIdempotencyStore, "complete", complete):
        yield


BUGS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    bug.__name__: bug for bug in (sent_before_it_is, inbox_without_memory, answer_apart)
}
