"""The bank's API: transfers with a key, and events of keys, each in one transaction."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import Annotated, Any
from uuid import uuid4

from fastapi import Depends, FastAPI, Header, HTTPException
from pydantic import BaseModel
from sqlalchemy import select, update

from semel import Hub, IdempotencyMiddleware, IdempotencyPolicy, SQLAlchemyUnitOfWork
from semel.errors import PayloadTooLargeError, SerializationError
from semel.fastapi import idempotency_key, unit_of_work
from tests.chaos.plan import LEASE
from tests.chaos.tables import Account, Execution, Stream, committed, digest

TEXTS = ("plain", "emoji \U0001f980 and \u05e9\u05dc\u05d5\u05dd", "\\u0000 \" '")

#: What no transaction may add.
BAD = {"oversize": "x" * 2_000_000, "nul": "nul \x00 inside"}


class Transfer(BaseModel):
    source: str
    target: str
    cents: int


class Append(BaseModel):
    """Which keys get one more event; how the transaction ends."""

    keys: list[str]
    kind: str = "Appended"
    end: str = "commit"


def user(x_user: Annotated[str, Header()]) -> str:
    return x_user


def tenant(x_tenant: Annotated[str, Header()]) -> str:
    return x_tenant


def create_app(hub: Hub, seed: int) -> FastAPI:
    app = FastAPI()
    chance = random.Random(seed)
    # Longer than a handler takes, or all who ask would undo each other.
    policy = IdempotencyPolicy(lease=timedelta(seconds=2 * LEASE))
    app.add_middleware(IdempotencyMiddleware, storage=hub.storage, policy=policy)
    uow_of = Depends(unit_of_work(hub, tenant=tenant), scope="function")
    claim = Depends(idempotency_key(principal=user, tenant=tenant))

    @app.post("/transfers", status_code=201, dependencies=[claim])
    async def transfer(
        body: Transfer,
        idempotency_key: Annotated[str, Header()],
        tenant_id: Annotated[str, Depends(tenant)],
        uow: Any = uow_of,
    ) -> dict[str, Any]:
        uow.session.add(
            Execution(tenant=tenant_id, key=idempotency_key, body=digest(body.model_dump()))
        )
        for name, cents in ((body.source, -body.cents), (body.target, body.cents)):
            changed = update(Account).where(Account.id == name)
            values = {"cents": Account.cents + cents, "version": Account.version + 1}
            await uow.session.execute(changed.values(**values))
            await asyncio.sleep(chance.choice((0.0, 0.0, 0.05)))
        tx = str(uuid4())
        for name in (body.source, body.target):
            version = await uow.session.scalar(select(Account.version).where(Account.id == name))
            payload = {"key": name, "version": version, "cents": body.cents, "text": "transfer"}
            await _add(uow, "transfers", "Transferred", payload, tx)
        await uow.commit()
        return {"tx": tx, "nonce": str(uuid4())}

    @app.post("/entries", status_code=201)
    async def append(
        body: Append, tenant_id: Annotated[str, Depends(tenant)], uow: Any = uow_of
    ) -> dict[str, Any]:
        tx = str(uuid4())
        versions = {}
        for key in body.keys:
            if body.kind in ("Poison", "Unheard"):
                version = 1
            else:
                grown = update(Stream).where(Stream.id == key)
                await uow.session.execute(grown.values(version=Stream.version + 1))
                version = await uow.session.scalar(select(Stream.version).where(Stream.id == key))
            payload = {"key": key, "version": version, "text": chance.choice(TEXTS)}
            await _add(uow, "entries", body.kind, payload, tx)
            versions[key] = version
        await asyncio.sleep(chance.choice((0.0, 0.0, 0.02)))
        await _end(uow, body)
        return {"tx": tx, "versions": versions}

    return app


async def _end(uow: SQLAlchemyUnitOfWork, body: Append) -> None:
    """Commit, or do one of the things after which there must be no event."""
    if body.end == "rollback":
        raise HTTPException(418, "rolled back, as asked")
    if body.end in BAD:
        try:
            await uow.outbox.add("entries", {"text": BAD[body.end]}, key="bad")
        except (PayloadTooLargeError, SerializationError):
            raise HTTPException(413, "refused, as it should be") from None
        raise AssertionError("a payload was taken that must be refused")
    if body.end == "savepoint":
        nested = await uow.session.begin_nested()
        await _add(uow, "entries", "Appended", {"key": "ghost", "version": 1, "text": ""}, "ghost")
        await nested.rollback()
    await uow.commit()


async def _add(
    uow: SQLAlchemyUnitOfWork, topic: str, kind: str, payload: dict[str, Any], tx: str
) -> None:
    record = await uow.outbox.add(topic, payload, event_type=kind, key=payload["key"])
    uow.session.add(committed(record.id, record.tenant_id, payload, tx))
