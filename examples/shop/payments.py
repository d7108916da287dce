"""The service that takes the money; a real one would give its provider the event's id as a key."""

from __future__ import annotations

from examples.shop.settings import Settings
from examples.shop.tables import Payment
from semel import Hub, MessageEnvelope, SQLAlchemyUnitOfWork

LIMIT_CENTS = 5000


def listen(hub: Hub, settings: Settings) -> None:
    """Give *hub* the handlers of this service."""
    stock = hub.consumer(settings.topic("stock"), ignore_unknown=True)

    @stock.on("StockReserved")
    async def charge(event: MessageEnvelope, uow: SQLAlchemyUnitOfWork) -> None:
        order = event.payload
        taken = order["cents"] <= LIMIT_CENTS
        uow.session.add(Payment(order_id=order["id"], cents=order["cents"], taken=taken))
        outcome = "PaymentTaken" if taken else "PaymentDeclined"
        await uow.outbox.add(settings.topic("payments"), order, event_type=outcome, key=order["id"])
