"""The inbox gate: one insert decides whether a message is new."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, TypeVar, cast

from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    Update,
    and_,
    bindparam,
    event,
    inspect,
    or_,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from semel.envelope import MessageEnvelope
from semel.errors import StorageError, TransactionMisuseError
from semel.sqlalchemy.buffer import join
from semel.sqlalchemy.dialects import Database, database_of
from semel.sqlalchemy.outbox import SqlAlchemyOutbox
from semel.sqlalchemy.tables import InboxRecord
from semel.states import Admission, InboxStatus, Receipt

INBOX = cast("Table", InboxRecord.__table__)

T = TypeVar("T")
Key = tuple[str, str, str]

_STAMPS = ("received_at", "processed_at")
_CALLBACKS = "semel.after_commit"
_CHUNK = 500
_UNLIMITED = 2**63
# Instead of the reason for which it was given up, which is in its letter.
AGAIN = "again: it was given up, came once more, and is being tried"


class SqlAlchemyInboxGate:
    """Admits messages inside the transaction of *session*."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._transaction: object | None = None

    async def admit(self, receipts: Sequence[Receipt]) -> Sequence[Admission]:
        """Insert one row per receipt; the answer at i belongs to receipt i.

        Raises `NoTransactionError` where the row would be committed at once.
        """
        return await self._run(lambda c, d: self._admit(c, d, receipts), before=join)

    async def complete(self, receipts: Sequence[Receipt], *, duration_ms: int) -> None:
        """Finish admitted rows; raise `TransactionMisuseError` unless all of them are there."""
        await self._run(
            lambda c, d: self._complete(c, d, receipts, duration_ms), before=Session.flush
        )

    async def settle(
        self, receipt: Receipt, *, status: InboxStatus, attempts: int, reason: str
    ) -> bool:
        """Write the receipt as DEAD or PARKED; False if it was PROCESSED meanwhile."""
        values = {"status": status.value, "attempts": attempts, "reason": reason}
        return await self._run(lambda c, d: self._settle(c, d, receipt, values))

    async def attempts(self, receipt: Receipt, *, add: int = 0) -> int:
        """Return the durable number of attempts of a message, after adding *add* to it."""
        return await self._run(lambda c, d: self._attempts(c, d, receipt, add))

    async def bury(self, letter: MessageEnvelope) -> None:
        """Add a dead letter to the outbox, however large it is, unless it is there already."""
        outbox = SqlAlchemyOutbox(self._session, letter.tenant_id, max_payload_bytes=_UNLIMITED)
        row = outbox.row(letter)
        buffer = await self._session.run_sync(join)
        if row.id not in buffer.ids:
            buffer.append(row, derived=True)

    @asynccontextmanager
    async def savepoint(self) -> AsyncIterator[None]:
        """Undo what happens inside if it raises; the transaction around it goes on."""
        await self._session.run_sync(join)
        nested = await self._session.begin_nested()
        try:
            yield
        except BaseException:
            try:
                await nested.rollback()
            except DBAPIError:
                # The database has rolled back everything, as InnoDB does on a deadlock: what the
                # caller did before is gone, and must not be committed without it.
                (await self._session.run_sync(join)).poisoned = True
            raise
        else:
            await nested.commit()

    def after_commit(self, callback: Callable[[], None]) -> None:
        """Call *callback* once the transaction has committed; never if it is rolled back."""
        session = self._session.sync_session
        session.info.setdefault(_CALLBACKS, []).append((session.get_transaction(), callback))

    async def _run(
        self,
        function: Callable[[Connection, Database], T],
        *,
        before: Callable[[Session], object] | None = None,
    ) -> T:
        def run(session: Session) -> T:
            if before is not None:
                before(session)
            connection = session.connection(bind_arguments={"mapper": inspect(InboxRecord)})
            return function(connection, database_of(connection.dialect))

        return await self._session.run_sync(run)

    def _admit(
        self, connection: Connection, database: Database, receipts: Sequence[Receipt]
    ) -> list[Admission]:
        self._transaction = connection.get_transaction()
        unique: dict[Key, Receipt] = {}
        for receipt in receipts:
            unique.setdefault(_key(receipt), receipt)
        # One order for everybody: two batches with common ids wait for each other, no deadlock.
        ordered = [unique[key] for key in sorted(unique)]
        verdicts: dict[Key, Admission] = {}
        for start in range(0, len(ordered), _CHUNK):
            chunk = ordered[start : start + _CHUNK]
            rows = [_values(receipt) for receipt in chunk]
            new = database.insert_absent(connection, INBOX, _uniform(rows), stamped=_STAMPS)
            for receipt in chunk:
                key = _key(receipt)
                verdicts[key] = (
                    Admission.NEW if key in new else self._collided(connection, database, receipt)
                )
        answers: list[Admission] = []
        seen: set[Key] = set()
        for receipt in receipts:
            key = _key(receipt)
            if key not in seen:
                seen.add(key)
                answers.append(verdicts[key])
            elif verdicts[key] is Admission.CONFLICT:
                # The first of this id is not what the inbox knows: it says nothing about this one.
                verdicts[key] = self._collided(connection, database, receipt)
                unique[key] = receipt
                answers.append(verdicts[key])
            elif _differ(unique[key].payload_hash, receipt.payload_hash):
                answers.append(Admission.CONFLICT)
            else:
                answers.append(Admission.DUPLICATE)
        return answers

    def _collided(self, connection: Connection, database: Database, receipt: Receipt) -> Admission:
        found = _read(connection, database, receipt)
        if found is None:
            # A clean-up took the row between the insert and the read.
            if database.insert_absent(connection, INBOX, [_values(receipt)], stamped=_STAMPS):
                return Admission.NEW
            found = _read(connection, database, receipt)
            if found is None:
                raise StorageError("the inbox refuses a row that it does not hold: see triggers")
        if _differ(found.payload_hash, receipt.payload_hash):
            # Locks it: of two at a time, neither would see the letter that the other writes.
            connection.execute(update(INBOX).where(_is(receipt)).values(attempts=INBOX.c.attempts))
            return Admission.CONFLICT
        if found.status == InboxStatus.PROCESSED:
            return Admission.DUPLICATE
        taken = connection.execute(
            update(INBOX)
            .where(_is(receipt), INBOX.c.status != InboxStatus.PROCESSED.value)
            .values(
                status=InboxStatus.PROCESSED.value,
                reason=None,
                handler=receipt.handler,
                payload_hash=receipt.payload_hash or found.payload_hash,
                processing_duration_ms=None,
                processed_at=database.now(),
            )
        )
        return Admission.NEW if taken.rowcount == 1 else Admission.DUPLICATE

    def _complete(
        self,
        connection: Connection,
        database: Database,
        receipts: Sequence[Receipt],
        duration_ms: int,
    ) -> None:
        matched = 0
        same = connection.get_transaction() is self._transaction
        for tenant_id, consumer_name, ids in _groups(receipts) if same else ():
            one = len(ids) == 1
            values = {
                "of_tenant": tenant_id,
                "of_consumer": consumer_name,
                "of_message": ids[0] if one else ids,
                "duration": duration_ms,
            }
            matched += connection.execute(_completion(database, one), values).rowcount
        if matched != len(receipts):
            raise TransactionMisuseError(
                f"the inbox holds {matched} of {len(receipts)} rows of this transaction: the "
                "handler committed or rolled back the session that it was lent. Remove that call; "
                "use `async with session.begin_nested():` to undo a part"
            )

    def _settle(
        self,
        connection: Connection,
        database: Database,
        receipt: Receipt,
        values: dict[str, Any],
    ) -> bool:
        if database.insert_absent(connection, INBOX, [_values(receipt) | values], stamped=_STAMPS):
            return True
        changed = connection.execute(
            update(INBOX)
            .where(_is(receipt), INBOX.c.status != InboxStatus.PROCESSED.value)
            .values(**values, processed_at=database.now(), handler=receipt.handler)
        )
        return changed.rowcount == 1

    def _attempts(
        self, connection: Connection, database: Database, receipt: Receipt, add: int
    ) -> int:
        received = InboxStatus.RECEIVED.value
        if add:
            values = {"status": received, "attempts": add}
            if database.insert_absent(
                connection, INBOX, [_values(receipt) | values], stamped=_STAMPS
            ):
                return add
            counted = connection.execute(
                update(INBOX)
                .where(_is(receipt), or_(INBOX.c.status == received, INBOX.c.reason == AGAIN))
                .values(attempts=INBOX.c.attempts + add, processed_at=database.now())
            )
            if not counted.rowcount:
                # DEAD or PARKED and here again: a replay has its attempts before it. It may be a
                # late copy as well, which nobody finishes if this process dies: it stays DEAD.
                connection.execute(
                    update(INBOX)
                    .where(_is(receipt), INBOX.c.status != InboxStatus.PROCESSED.value)
                    .values(attempts=add, reason=AGAIN, processed_at=database.now())
                )
        found = _read(connection, database, receipt)
        return 0 if found is None else int(found.attempts)


def _key(receipt: Receipt) -> Key:
    return receipt.tenant_id, receipt.consumer_name, receipt.message_id


def _values(receipt: Receipt) -> dict[str, Any]:
    values: dict[str, Any] = {
        "tenant_id": receipt.tenant_id,
        "consumer_name": receipt.consumer_name,
        "message_id": receipt.message_id,
        "event_type": receipt.event_type,
        "source": receipt.source,
        "status": InboxStatus.PROCESSED.value,
        "attempts": 1,
        "handler": receipt.handler,
        "payload_hash": receipt.payload_hash,
        "payload": receipt.payload,
    }
    if receipt.extra_data is not None:
        values["extra_data"] = dict(receipt.extra_data)
    return values


def _uniform(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if any("extra_data" in row for row in rows):
        return [{"extra_data": None, **row} for row in rows]
    return rows


def _is(receipt: Receipt) -> ColumnElement[bool]:
    return and_(
        INBOX.c.tenant_id == receipt.tenant_id,
        INBOX.c.consumer_name == receipt.consumer_name,
        INBOX.c.message_id == receipt.message_id,
    )


def _read(connection: Connection, database: Database, receipt: Receipt) -> Any | None:
    statement = select(INBOX.c.status, INBOX.c.payload_hash, INBOX.c.attempts).where(_is(receipt))
    if database.collisions_need_locking_reads:
        statement = statement.with_for_update(read=True)
    return connection.execute(statement).one_or_none()


def _groups(receipts: Iterable[Receipt]) -> Iterator[tuple[str, str, list[str]]]:
    """Split into messages of one tenant and consumer each."""
    groups: dict[tuple[str, str], list[str]] = {}
    for receipt in receipts:
        groups.setdefault((receipt.tenant_id, receipt.consumer_name), []).append(receipt.message_id)
    for (tenant_id, consumer_name), ids in groups.items():
        for start in range(0, len(ids), _CHUNK):
            yield tenant_id, consumer_name, ids[start : start + _CHUNK]


@cache
def _completion(database: Database, one: bool) -> Update:
    """Return the statement that finishes rows, made once: that takes longer than executing it."""
    message: Any = bindparam("of_message", expanding=not one)
    return (
        update(INBOX)
        .where(
            INBOX.c.tenant_id == bindparam("of_tenant"),
            INBOX.c.consumer_name == bindparam("of_consumer"),
            INBOX.c.message_id == message if one else INBOX.c.message_id.in_(message),
            INBOX.c.status == InboxStatus.PROCESSED.value,
        )
        .values(processing_duration_ms=bindparam("duration"), processed_at=database.now())
    )


def _differ(known: str | None, given: str | None) -> bool:
    return known is not None and given is not None and known != given


def _committed(session: Session) -> None:
    if session.info.get(_CALLBACKS) and not session.in_nested_transaction():
        root = session.get_transaction()
        for transaction, callback in session.info.pop(_CALLBACKS):
            if transaction is root:
                callback()


# On the class, once: listeners of single sessions would have to be removed while they run.
event.listen(Session, "after_commit", _committed)
