"""The service that keeps the shelves: reserves what is ordered, takes back what is not paid."""

from __future__ import annotations

from sqlalchemy import update

from examples.shop.settings import Settings
from examples.shop.tables import StockItem
from semel import Hub, MessageEnvelope, SQLAlchemyUnitOfWork


def listen(hub: Hub, settings: Settings) -> None:
    """Give *hub* the handlers of this service."""
    orders = hub.consumer(settings.topic("orders"), ignore_unknown=True)
    payments = hub.consumer(settings.topic("payments"), ignore_unknown=True)

    @orders.on("OrderPlaced")
    async def reserve(event: MessageEnvelope, uow: SQLAlchemyUnitOfWork) -> None:
        order = event.payload
        taken = await uow.session.execute(
            update(StockItem)
            .where(StockItem.item == order["item"], StockItem.available >= order["quantity"])
            .values(available=StockItem.available - order["quantity"])
        )
        outcome = "StockReserved" if taken.rowcount else "StockRefused"
        await uow.outbox.add(settings.topic("stock"), order, event_type=outcome, key=order["id"])

    @payments.on("PaymentDeclined")
    async def take_back(event: MessageEnvelope, uow: SQLAlchemyUnitOfWork) -> None:
        order = event.payload
        await uow.session.execute(
            update(StockItem)
            .where(StockItem.item == order["item"])
            .values(available=StockItem.available + order["quantity"])
        )
