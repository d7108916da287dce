"""A transaction that its user has finished, and somebody else ends with a row of their own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from enum import Enum, auto
from typing import Any

from sqlalchemy import event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from semel.errors import TransactionMisuseError
from semel.failpoints import failpoint
from semel.sqlalchemy.buffer import join

_SEAL = "semel.seal"


class _State(Enum):
    OPEN = auto()
    SEALED = auto()
    ENDING = auto()
    ENDED = auto()


class Seal:
    """The right to end the transaction of *session*, once its unit of work was committed.

    While *needed* says so, commits by anybody else raise.
    """

    def __init__(self, session: AsyncSession, needed: Callable[[], bool]) -> None:
        self.session = session
        self.needed = needed
        self.left = False  # whether the unit of work's block has ended, and the session is ours
        self._state = _State.OPEN
        self._transaction: Any = None
        session.sync_session.info[_SEAL] = self

    @property
    def sealed(self) -> bool:
        """Whether the unit of work was committed and its transaction waits for its end."""
        return self._state is _State.SEALED

    def check(self) -> None:
        """Raise `TransactionMisuseError` unless the transaction may be sealed."""
        if self._state is not _State.OPEN:
            raise TransactionMisuseError(
                "this request has an idempotency key and was committed already: what a second "
                "commit writes could happen twice. Commit once; background tasks open a unit of "
                "work of their own"
            )

    async def close(self) -> None:
        """Seal: everything is flushed, nothing is durable."""
        await self.session.run_sync(join)  # refuses AUTOCOMMIT, and begins what was never used
        self._transaction = self.session.sync_session.get_transaction()
        self._state = _State.SEALED
        failpoint("request.after_seal")

    def reopen(self) -> None:
        """Forget the seal: its transaction was rolled back."""
        if self.sealed:
            self._state = _State.OPEN

    def verify(self) -> None:
        """Raise `TransactionMisuseError` if what was sealed is gone."""
        if self.session.sync_session.get_transaction() is not self._transaction:
            raise TransactionMisuseError(
                "the session of a committed unit of work was rolled back or closed: its effects "
                "are gone. Call uow.rollback() instead, or nothing"
            )

    async def commit(self) -> None:
        """Make everything durable."""
        self.verify()
        self._state = _State.ENDING
        try:
            await self.session.commit()
        except BaseException:
            # Closing alone would give the connection back with its transaction open.
            with suppress(SQLAlchemyError, OSError):
                await self.session.rollback()
            raise
        finally:
            await self._end()

    async def rollback(self) -> None:
        """Undo everything."""
        try:
            await self.session.rollback()
        finally:
            await self._end()

    async def _end(self) -> None:
        self._state = _State.ENDED
        if self.left:
            await self.session.close()

    def refuse(self) -> None:
        """Raise unless it is the holder of the seal who commits."""
        if self.needed() and self._state is not _State.ENDING:
            self.check()
            raise TransactionMisuseError(
                "this request has an idempotency key: semel commits the session together with "
                "the answer. Call uow.commit() instead of session.commit()"
            )


def _refuse_commit(session: Session) -> None:
    seal: Seal | None = session.info.get(_SEAL)
    if seal is not None and not session.in_nested_transaction():
        seal.refuse()


event.listen(Session, "before_commit", _refuse_commit)
