"""Whether the books balance."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select

from semel.cli.demo.shop import Order, Reservation
from semel.cli.demo.story import Story


@dataclass(frozen=True, slots=True)
class Finding:
    """One statement about the books, and whether it holds."""

    text: str
    holds: bool


async def audit(story: Story) -> list[Finding]:
    """Compare the orders that were committed with the effects that they had."""
    async with story.storage.engine.connect() as connection:
        orders = {row.id for row in await connection.execute(select(Order.id))}
        reservations = (
            await connection.execute(
                select(Reservation.order_id, Reservation.customer, Reservation.version).order_by(
                    Reservation.number
                )
            )
        ).all()
    figures = await story.figures()
    handled = [row.order_id for row in reservations]
    by_customer: dict[str, list[int]] = {}
    for row in reservations:
        by_customer.setdefault(row.customer, []).append(row.version)
    in_order = all(versions == sorted(versions) for versions in by_customer.values())
    lost = len(orders - set(handled))
    double = len(handled) - len(set(handled))
    ghosts = len(set(handled) - orders)
    return [
        Finding(f"{len(orders)} orders committed, {lost} without effect", lost == 0),
        Finding(
            f"{figures['duplicates']} events came more than once, {double} took effect twice",
            double == 0,
        ),
        Finding(f"{story.undone} transactions rolled back, {ghosts} left an event", ghosts == 0),
        Finding(f"{len(by_customer)} customers, each one's orders in order", in_order),
        Finding(f"{figures['unsent']} events unsent, {figures['DEAD']} dead", _all_sent(figures)),
    ]


def _all_sent(figures: dict[str, int]) -> bool:
    return figures["unsent"] == 0 and figures["DEAD"] == 0
