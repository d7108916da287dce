"""Keys of API calls: claimed by an insert, ended by an update that checks the token."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import timedelta
from time import monotonic
from typing import Any, TypeVar, cast
from uuid import uuid4

from sqlalchemy import (
    ColumnElement,
    Connection,
    Delete,
    Float,
    Table,
    Update,
    and_,
    bindparam,
    delete,
    inspect,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session
from sqlalchemy.util.concurrency import greenlet_spawn

from semel.errors import ConfigurationError, IdempotencyConflictError, StorageError
from semel.failpoints import failpoint
from semel.operations import Page
from semel.sqlalchemy.audit import Trail
from semel.sqlalchemy.buffer import join
from semel.sqlalchemy.dialects import Database, database_of
from semel.sqlalchemy.paging import NewestFirst, encode
from semel.sqlalchemy.schema import check_schema
from semel.sqlalchemy.tables import IdempotencyRecord
from semel.states import Answer, Claim, IdempotencyKey, IdempotencyState, Verdict

T = TypeVar("T")

_CALLS = cast("Table", IdempotencyRecord.__table__)
_ORDER = NewestFirst(_CALLS.c.created_at, *_CALLS.primary_key.columns)
_STARTED = IdempotencyState.STARTED.value
_ANSWER = ("status_code", "headers", "body", "completed_at")
_COLLISIONS = 20
_RETRY_SECONDS = 1.0


class SqlAlchemyIdempotencyStore:
    """The table `idempotency`; a call without *session* is a transaction of its own."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._database = database_of(engine.dialect)
        self._engine = engine.execution_options(**self._database.own_transaction_options)
        self._reader = engine.execution_options(semel_read_only=True)
        self._single = engine.execution_options(**self._database.single_statement_options)
        self._statements = _Statements(self._database)

    async def claim(
        self,
        key: IdempotencyKey,
        *,
        fingerprint: str,
        lease: timedelta,
        keep: timedelta,
        session: AsyncSession | None = None,
    ) -> Claim:
        """Claim the key, or tell why not."""
        # Made once: should an answer of the database be lost, the row tells that it is ours.
        token = str(uuid4())
        values = {
            "key_prefix": key.key_prefix,
            "fingerprint": fingerprint,
            "state": _STARTED,
            "token": token,
        }
        stamps = {
            "created_at": 0.0,
            "locked_until": lease.total_seconds(),
            "expires_at": max(lease, keep).total_seconds(),
        }
        if session is not None:
            await session.run_sync(join)  # refuses AUTOCOMMIT
            return await self._claim(key, values, stamps, session)
        give_up = monotonic() + _RETRY_SECONDS
        while True:
            try:
                return await self._claim(key, values, stamps, None)
            except Exception as error:
                # InnoDB may choose an insert that waits for a delete as a deadlock's victim.
                if not self._database.is_transient(error) or monotonic() > give_up:
                    raise
            await asyncio.sleep(0.01)

    async def _claim(
        self,
        key: IdempotencyKey,
        values: Mapping[str, str],
        stamps: Mapping[str, float],
        session: AsyncSession | None,
    ) -> Claim:
        claimed = Claim(key=key, verdict=Verdict.CLAIMED, token=values["token"])
        row = {**_identity(key), **values}

        def insert(connection: Connection) -> bool:
            return bool(self._database.insert_absent(connection, _CALLS, [row], stamped=stamps))

        def read(connection: Connection) -> Any | None:
            return self._read(connection, key, joined=session is not None)

        # Several transactions, if they are ours: who holds the lock of a collision while it
        # updates is in a deadlock with the next one that does.
        for _ in range(_COLLISIONS):
            if await self._run(insert, session):
                return claimed
            found = await self._run(read, session)
            if found is None:
                continue
            if found.token == values["token"]:
                return claimed
            free = self._free(found)
            if free is None:
                return _verdict(key, found, values["fingerprint"])
            if found.left > 0 and found.fingerprint != values["fingerprint"]:
                return Claim(key=key, verdict=Verdict.MISMATCH)
            again = (
                update(_CALLS)
                .where(_is(key), _CALLS.c.token == found.token, free)
                .values(**values, **self._database.stamps(stamps), **dict.fromkeys(_ANSWER))
            )
            if await self._change(again, {}, session):
                failpoint("idempotency.after_takeover")
                return claimed
        raise StorageError("a key of the idempotency table keeps coming and going: see triggers")

    def _read(self, connection: Connection, key: IdempotencyKey, *, joined: bool) -> Any | None:
        statement = self._statements.read
        if joined and self._database.collisions_need_locking_reads:
            statement = statement.with_for_update(read=True)
        return connection.execute(statement, _bound(key)).one_or_none()

    def _free(self, found: Any) -> ColumnElement[bool] | None:
        """Return under which condition, now true, the key may be taken; None if it may not."""
        now = self._database.now()
        if found.left <= 0:
            return _CALLS.c.expires_at <= now
        if found.state == _STARTED and found.leased <= 0:
            return and_(_CALLS.c.state == _STARTED, _CALLS.c.locked_until <= now)
        return None

    async def renew(self, claim: Claim, *, lease: timedelta) -> bool:
        """Begin the lease anew; False if the key is no longer ours."""
        values = {"b_token": claim.token, "b_lease": lease.total_seconds()}
        return await self._change(self._statements.renew, _bound(claim.key) | values) == 1

    async def complete(
        self,
        claim: Claim,
        answer: Answer | None,
        *,
        keep: timedelta,
        session: AsyncSession | None = None,
    ) -> None:
        """Keep the answer; raise `IdempotencyConflictError` if the key was taken over."""
        values: dict[str, Any] = {
            "b_token": claim.token,
            "b_keep": keep.total_seconds(),
            "state": IdempotencyState.COMMITTED.value,
            "status_code": None,
            "headers": None,
            "body": None,
        }
        if answer is not None:
            values |= {
                "state": IdempotencyState.COMPLETED.value,
                "status_code": answer.status_code,
                "headers": [list(pair) for pair in answer.headers],
                "body": answer.body,
            }
        values |= _bound(claim.key)
        if not await self._change(self._statements.complete, values, session, before=Session.flush):
            raise IdempotencyConflictError(
                "the lease of this key ran out and another call has taken it over, or the unit "
                "of work is on another database than the keys: nothing of this call is kept"
            )

    async def release(
        self, key: IdempotencyKey, *, token: str | None = None, actor: str | None = None
    ) -> bool:
        """Forget the key; with *token* only while it is STARTED under it."""
        values = _bound(key) | {"b_token": token or ""}
        statement = self._statements.forget if token is None else self._statements.release
        if actor is None:
            return await self._change(statement, values) == 1
        target = f"{key.method} {key.route} of {key.principal}"
        trail = Trail(actor=actor, action="idempotency.release", target=target)
        async with self._engine.begin() as connection:
            found = (await connection.execute(statement, values)).rowcount == 1
            if found:
                await trail.note(connection, tenant_id=key.tenant_id, key_hash=key.key_hash)
        return found

    async def get(self, key: IdempotencyKey) -> IdempotencyRecord | None:
        """Return the row, or None."""
        async with AsyncSession(self._reader) as session:
            return await session.scalar(select(IdempotencyRecord).where(_is(key)))

    async def search(
        self,
        *,
        tenant_id: str | None = None,
        principal: str | None = None,
        route: str | None = None,
        state: IdempotencyState | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> Page[IdempotencyRecord, str]:
        """Newest first; page on with *before* = the page's `next` until it is None."""
        limit = max(1, min(limit, 1000))
        equals = {"tenant_id": tenant_id, "principal": principal, "route": route}
        statement = _ORDER.sort(select(IdempotencyRecord))
        for name, value in equals.items():
            if value is not None:
                statement = statement.where(_CALLS.c[name] == value)
        if state is not None:
            statement = statement.where(_CALLS.c.state == IdempotencyState(state).value)
        if before is not None:
            statement = statement.where(_ORDER.behind(_ORDER.find(before)))
        async with AsyncSession(self._reader) as session:
            rows = (await session.scalars(statement.limit(limit))).all()
        full = len(rows) == limit
        return Page(rows, next=encode(_ORDER.place(rows[-1])) if full else None)

    async def cleanup(
        self,
        *,
        tenant_id: str | None = None,
        batch_size: int = 10_000,
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Delete expired rows, in transactions of at most *batch_size*."""
        if batch_size < 1:
            raise ConfigurationError("batch_size must be at least 1")
        condition: ColumnElement[bool] = _CALLS.c.expires_at <= self._database.now()
        if tenant_id is not None:
            condition = and_(condition, _CALLS.c.tenant_id == tenant_id)
        statement = self._database.delete_some(_CALLS, condition, limit=batch_size)
        total = 0
        while True:
            async with self._engine.begin() as connection:
                removed = (await connection.execute(statement)).rowcount
            failpoint("cleanup.after_keys")
            total += removed
            if progress is not None:
                progress(total)
            if removed < batch_size:
                return total

    async def _change(
        self,
        statement: Update | Delete,
        values: Mapping[str, Any],
        session: AsyncSession | None = None,
        *,
        before: Callable[[Session], object] | None = None,
    ) -> int:
        """Return how many rows *statement* changed."""
        return await self._run(
            lambda c: c.execute(statement, values).rowcount, session, before=before
        )

    async def _run(
        self,
        function: Callable[[Connection], T],
        session: AsyncSession | None = None,
        *,
        before: Callable[[Session], object] | None = None,
    ) -> T:
        """Call *function* in *session*'s transaction, after *before*, or in one of its own."""
        if session is not None:

            def run(sync: Session) -> T:
                if before is not None:
                    before(sync)
                mapper = inspect(IdempotencyRecord)
                return function(sync.connection(bind_arguments={"mapper": mapper}))

            return await session.run_sync(run)

        def own() -> T:
            with self._single.sync_engine.begin() as connection:
                check_schema(connection)
                return function(connection)

        # An AsyncConnection would switch greenlets five times for it.
        return await greenlet_spawn(own)


def _identity(key: IdempotencyKey) -> dict[str, str]:
    return {
        "tenant_id": key.tenant_id,
        "principal": key.principal,
        "method": key.method,
        "route": key.route,
        "key_hash": key.key_hash,
    }


def _is(key: IdempotencyKey) -> ColumnElement[bool]:
    return and_(*(_CALLS.c[name] == value for name, value in _identity(key).items()))


def _bound(key: IdempotencyKey) -> dict[str, str]:
    return {f"b_{name}": value for name, value in _identity(key).items()}


class _Statements:
    """Made once: that takes longer than executing them."""

    def __init__(self, database: Database) -> None:
        names = ("tenant_id", "principal", "method", "route", "key_hash")
        known = and_(*(_CALLS.c[name] == bindparam(f"b_{name}") for name in names))
        ours = and_(known, _CALLS.c.token == bindparam("b_token"), _CALLS.c.state == _STARTED)
        columns = _CALLS.c["state", "token", "fingerprint", "status_code", "headers", "body"]
        self.read = select(
            *columns,
            database.seconds_until(_CALLS.c.locked_until).label("leased"),
            database.seconds_until(_CALLS.c.expires_at).label("left"),
        ).where(known)
        self.renew = (
            update(_CALLS)
            .where(ours)
            .values(locked_until=database.later(bindparam("b_lease", type_=Float)))
        )
        self.complete = (
            update(_CALLS)
            .where(ours)
            .values(
                **{name: bindparam(name) for name in ("state", "status_code", "headers", "body")},
                completed_at=database.now(),
                expires_at=database.later(bindparam("b_keep", type_=Float)),
            )
        )
        self.release = delete(_CALLS).where(ours)
        self.forget = delete(_CALLS).where(known)


def _verdict(key: IdempotencyKey, found: Any, fingerprint: str) -> Claim:
    if found.fingerprint != fingerprint:
        return Claim(key=key, verdict=Verdict.MISMATCH)
    if found.state == IdempotencyState.COMPLETED:
        headers = [(name, value) for name, value in found.headers]
        answer = Answer(status_code=found.status_code, headers=headers, body=bytes(found.body))
        return Claim(key=key, verdict=Verdict.COMPLETED, answer=answer)
    if found.state == IdempotencyState.COMMITTED and found.leased <= 0:
        return Claim(key=key, verdict=Verdict.NOT_KEPT)
    return Claim(key=key, verdict=Verdict.IN_FLIGHT)
