"""What the services store. Each touches its own tables only."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import DateTime, String, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

CATALOGUE = {"tea": 450, "coffee": 790, "cocoa": 620}
STOCK = 200


class Base(DeclarativeBase):
    pass


class Order(Base):
    """Of the service *orders*. `version` grows with every change."""

    __tablename__ = "shop_order"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    customer: Mapped[str] = mapped_column(String(40))
    item: Mapped[str] = mapped_column(String(20))
    quantity: Mapped[int]
    cents: Mapped[int]
    status: Mapped[str] = mapped_column(String(20), default="placed")
    version: Mapped[int] = mapped_column(default=1)
    placed_at: Mapped[datetime] = mapped_column(
        DateTime(timezone=True), default=lambda: datetime.now(UTC), index=True
    )


class StockItem(Base):
    """Of the service *stock*."""

    __tablename__ = "shop_stock"

    item: Mapped[str] = mapped_column(String(20), primary_key=True)
    available: Mapped[int]


class Payment(Base):
    """Of the service *payments*."""

    __tablename__ = "shop_payment"

    order_id: Mapped[str] = mapped_column(String(36), primary_key=True)
    cents: Mapped[int]
    taken: Mapped[bool]


async def fill_shelves(session: AsyncSession) -> None:
    """Give every item of the catalogue its stock, once."""
    known = set(await session.scalars(select(StockItem.item)))
    session.add_all(
        StockItem(item=item, available=STOCK) for item in CATALOGUE if item not in known
    )
    await session.commit()
