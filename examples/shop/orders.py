"""The service that customers talk to: its routes, and what it hears from the others."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from uuid import UUID, uuid4

from fastapi import APIRouter, Depends, HTTPException, Query, status
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from sqlalchemy import select

from examples.shop.settings import Settings
from examples.shop.tables import CATALOGUE, Order, StockItem
from semel import Hub, MessageEnvelope, SQLAlchemyUnitOfWork
from semel.fastapi import idempotency_key, unit_of_work

OUTCOMES = {
    "StockRefused": "out of stock",
    "PaymentTaken": "paid",
    "PaymentDeclined": "declined",
}


def _number(value: object) -> object:
    """Take 3 and 3.0, which are the same in JSON, and neither "3" nor true."""
    if isinstance(value, bool | str):
        raise ValueError("a whole number is needed")  # noqa: TRY004  what pydantic expects
    return value


class NewOrder(BaseModel):
    """What a customer sends."""

    model_config = ConfigDict(extra="forbid")

    customer: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9 .-]{0,39}$")]
    item: Literal["tea", "coffee", "cocoa"]
    quantity: Annotated[int, Field(ge=1, le=20), BeforeValidator(_number)]


def _utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment  # SQLite forgets it


class OrderView(BaseModel):
    """An order as everybody sees it: in answers, in events, on the page."""

    model_config = ConfigDict(from_attributes=True)

    id: UUID
    customer: str
    item: str
    quantity: int
    cents: int
    status: str
    version: int
    placed_at: Annotated[datetime, AfterValidator(_utc)]


class StockView(BaseModel):
    """How much is left of an item."""

    model_config = ConfigDict(from_attributes=True)

    item: str
    available: int


class Problem(BaseModel):
    """Why a request was refused."""

    detail: str


def caller() -> str:
    """Return who calls. A real shop returns the user that it has authenticated."""
    return "anybody"


def as_event(order: Order) -> dict[str, Any]:
    """Return the payload of an event about *order*."""
    return OrderView.model_validate(order).model_dump(mode="json")


def routes(hub: Hub, settings: Settings) -> APIRouter:
    """Return the API of this service."""
    router = APIRouter()
    # The route commits; with scope="function" its connection is free before the answer is sent.
    uow_of_request = Depends(unit_of_work(hub), scope="function")

    once = Depends(idempotency_key(principal=caller))

    @router.post(
        "/orders",
        status_code=status.HTTP_201_CREATED,
        dependencies=[once],
        responses={400: {"model": Problem}},
    )
    async def place(new: NewOrder, uow: SQLAlchemyUnitOfWork = uow_of_request) -> OrderView:
        """Place an order. It is stored together with the event that tells the others."""
        order = Order(id=str(uuid4()), cents=CATALOGUE[new.item] * new.quantity, **new.model_dump())
        uow.session.add(order)
        await uow.session.flush()
        await uow.outbox.add(
            settings.topic("orders"), as_event(order), event_type="OrderPlaced", key=order.id
        )
        await uow.commit()
        return OrderView.model_validate(order)

    @router.get("/orders")
    async def newest(
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        uow: SQLAlchemyUnitOfWork = uow_of_request,
    ) -> list[OrderView]:
        """Return the newest orders."""
        found = await uow.session.scalars(
            select(Order).order_by(Order.placed_at.desc(), Order.id).limit(limit)
        )
        return [OrderView.model_validate(order) for order in found]

    @router.get("/orders/{order_id}", responses={404: {"model": Problem}})
    async def one(order_id: UUID, uow: SQLAlchemyUnitOfWork = uow_of_request) -> OrderView:
        """Return one order."""
        order = await uow.session.get(Order, str(order_id))
        if order is None:
            raise HTTPException(404, "There is no such order.")
        return OrderView.model_validate(order)

    @router.get("/stock")
    async def stock(uow: SQLAlchemyUnitOfWork = uow_of_request) -> list[StockView]:
        """Return what is on the shelves."""
        found = await uow.session.scalars(select(StockItem).order_by(StockItem.item))
        return [StockView.model_validate(item) for item in found]

    return router


def listen(hub: Hub, settings: Settings) -> None:
    """Give *hub* the handlers of this service."""
    for topic in ("stock", "payments"):
        consumer = hub.consumer(settings.topic(topic), ignore_unknown=True)
        for event_type in OUTCOMES:
            consumer.on(event_type)(_changer(settings))


def _changer(settings: Settings) -> Any:
    async def change(event: MessageEnvelope, uow: SQLAlchemyUnitOfWork) -> None:
        order = await uow.session.get(Order, event.payload["id"], with_for_update=True)
        if order is None:
            raise LookupError("an order that this service never placed")
        order.status = OUTCOMES[event.event_type]
        order.version += 1
        await uow.outbox.add(
            settings.topic("orders"), as_event(order), event_type="OrderChanged", key=order.id
        )

    return change
