"""A bank whose payments must happen once: a FastAPI service, and a look at its books."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from uuid import uuid4

import httpx2
from fastapi import BackgroundTasks, Depends, FastAPI, Header, HTTPException, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from sqlalchemy import String, delete, func, select, update
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from semel import (
    Hub,
    IdempotencyMiddleware,
    IdempotencyPolicy,
    SqlAlchemyStorage,
    SQLAlchemyUnitOfWork,
)
from semel.fastapi import describe_idempotency, idempotency_key, unit_of_work
from semel.sqlalchemy.tables import IdempotencyRecord, OutboxRecord


class Base(DeclarativeBase):
    """The bank's own tables."""


class Payment(Base):
    __tablename__ = "payment"

    id: Mapped[int] = mapped_column(primary_key=True)
    account: Mapped[str] = mapped_column(String(40))
    cents: Mapped[int]


class Account(Base):
    __tablename__ = "account"

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    cents: Mapped[int] = mapped_column(default=0)


class Order(BaseModel):
    account: str = "a-1"
    cents: int = 100


def user(x_user: Annotated[str, Header()] = "") -> str:
    if not x_user:
        raise HTTPException(401, "who are you?")
    return x_user


def tenant(x_tenant: Annotated[str, Header()] = "default") -> str:
    return x_tenant


async def pay(uow: SQLAlchemyUnitOfWork, order: Order) -> dict[str, Any]:
    """Write a payment, its booking and its event, and commit."""
    payment = Payment(account=order.account, cents=order.cents)
    uow.session.add(payment)
    await uow.session.flush()
    booking = update(Account).where(Account.id == order.account)
    await uow.session.execute(booking.values(cents=Account.cents + order.cents))
    await uow.outbox.add("payments", {"id": payment.id}, key=order.account)
    await uow.commit()
    return {"payment": payment.id, "nonce": str(uuid4())}


def create_app(hub: Hub, *, scope: Any = "function", **options: Any) -> FastAPI:
    """Return the service; *options* are those of the middleware."""
    app = FastAPI()
    app.state.calls = Counter[str]()
    app.state.gates = {"reached": asyncio.Event(), "go": asyncio.Event()}
    app.add_middleware(IdempotencyMiddleware, storage=hub.storage, **options)
    describe_idempotency(app)
    uow_of = Depends(unit_of_work(hub, tenant=tenant), scope=scope)
    claim = Depends(idempotency_key(principal=user, tenant=tenant))

    @app.post("/payments", status_code=201, dependencies=[claim])
    async def place(order: Order, response: Response, uow: Any = uow_of) -> dict[str, Any]:
        app.state.calls["payments"] += 1
        response.headers["location"] = f"/payments/of/{order.account}"
        response.headers["x-request-id"] = str(uuid4())
        response.set_cookie("session", "secret")
        return await pay(uow, order)

    @app.post("/accounts/{account}/payments", status_code=201, dependencies=[claim])
    async def place_for(account: str, order: Order, uow: Any = uow_of) -> dict[str, Any]:
        return await pay(uow, order.model_copy(update={"account": account}))

    @app.post("/free", status_code=201)
    async def free(order: Order, uow: Any = uow_of) -> dict[str, Any]:
        """Without a key: what the others are compared with."""
        return await pay(uow, order)

    monthly = IdempotencyPolicy(keep=timedelta(days=30), required=False)
    own_claim = Depends(idempotency_key(principal=user, tenant=tenant, policy=monthly))

    @app.post("/monthly", dependencies=[own_claim])
    async def rarely() -> dict[str, Any]:
        app.state.calls["monthly"] += 1
        return {"nonce": str(uuid4())}

    @app.post("/outside", dependencies=[claim])
    async def outside() -> dict[str, Any]:
        """Without a unit of work."""
        app.state.calls["outside"] += 1
        return {"nonce": str(uuid4())}

    _add_troubles(app, hub, claim, uow_of)
    return app


def _add_troubles(app: FastAPI, hub: Hub, claim: Any, uow_of: Any) -> None:
    """Routes whose handlers do what they should not."""

    @app.post("/slow", dependencies=[claim])
    async def slow(order: Order, uow: Any = uow_of) -> dict[str, Any]:
        app.state.gates["reached"].set()
        await app.state.gates["go"].wait()
        return await pay(uow, order)

    @app.post("/raises", dependencies=[claim])
    async def raises(order: Order, uow: Any = uow_of) -> None:
        app.state.calls["raises"] += 1
        await pay(uow, order)
        if app.state.calls["raises"] == 1:
            raise RuntimeError("boom")

    @app.post("/answers/{status}", dependencies=[claim])
    async def answers(
        status: int, order: Order, commits: bool = True, uow: Any = uow_of
    ) -> dict[str, Any]:
        app.state.calls["answers"] += 1
        paid = await pay(uow, order) if commits else {"nonce": str(uuid4())}
        raise HTTPException(status, paid)

    @app.post("/streams/{count}", dependencies=[claim])
    async def streams(count: int, uow: Any = uow_of) -> StreamingResponse:
        await pay(uow, Order())

        async def body() -> AsyncIterator[bytes]:
            for _ in range(count):
                yield b"x" * 65536

        return StreamingResponse(body(), media_type="application/octet-stream")

    @app.post("/twice", dependencies=[claim])
    async def twice(uow: Any = uow_of) -> None:
        await pay(uow, Order())
        await uow.commit()

    @app.post("/session-commit", dependencies=[claim])
    async def session_commit(uow: Any = uow_of) -> None:
        uow.session.add(Payment(account="a-1", cents=1))
        await uow.session.commit()

    @app.post("/background", dependencies=[claim])
    async def background(
        request: Request, tasks: BackgroundTasks, uow: Any = uow_of
    ) -> dict[str, Any]:
        async def later() -> None:
            async with hub.unit_of_work() as own:
                request.scope["semel.idempotency"].adopt(own)
                own.session.add(Payment(account="a-2", cents=5))
                await own.commit()

        tasks.add_task(later)
        return await pay(uow, Order())


class Bank:
    """The service in this process, and its books."""

    def __init__(self, storage: SqlAlchemyStorage) -> None:
        self.storage = storage
        self.hub = Hub("bank", storage=storage)
        self.app = create_app(self.hub)

    async def create(self) -> None:
        await self.storage.initialize()
        async with self.storage.engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        async with self.storage.session_factory() as session:
            session.add_all(Account(id=f"a-{n}", cents=0) for n in range(10))
            await session.commit()

    async def empty(self) -> None:
        """Forget all payments, events and keys."""
        async with self.storage.engine.begin() as connection:
            for table in (Payment, OutboxRecord, IdempotencyRecord):
                await connection.execute(delete(table))
            await connection.execute(update(Account).values(cents=0))

    def serve(self, **options: Any) -> None:
        """Begin anew, with other options of the middleware."""
        self.app = create_app(self.hub, **options)

    @asynccontextmanager
    async def client(self, app: Any = None, **headers: str) -> AsyncIterator[httpx2.AsyncClient]:
        transport = httpx2.ASGITransport(app=app or self.app, raise_app_exceptions=False)
        headers = {"x-user": "ann", "idempotency-key": "k-1"} | headers
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://bank", headers=headers, timeout=60
        ) as client:
            yield client

    async def books(self) -> tuple[int, int, int, int]:
        """Return the number of payments, their sum, the accounts' sum and the number of events."""
        reader = self.storage.engine.execution_options(semel_read_only=True)
        async with reader.connect() as connection:
            count, cents = (
                await connection.execute(select(func.count(), func.sum(Payment.cents)))
            ).one()
            booked = await connection.scalar(select(func.sum(Account.cents)))
            events = await connection.scalar(select(func.count()).select_from(OutboxRecord))
        return count, int(cents or 0), int(booked or 0), events or 0

    async def past(self, column: str) -> None:
        """Let the leases (`locked_until`) or the keys (`expires_at`) run out."""
        then = datetime(2000, 1, 1, tzinfo=UTC)
        async with self.storage.engine.begin() as connection:
            await connection.execute(update(IdempotencyRecord).values({column: then}))

    async def keys(self) -> list[IdempotencyRecord]:
        return list(await self.storage.idempotency.search())


PAID_ONCE = (1, 100, 100, 1)
UNPAID = (0, 0, 0, 0)
WAITING = IdempotencyPolicy(wait=timedelta(seconds=60))
