"""A small service that tests name as `service:hub`."""

from __future__ import annotations

from pathlib import Path

SERVICE = """
from dataclasses import dataclass, field
from datetime import timedelta
from os import environ

from semel import Hub, MessageEnvelope, Retention, SqlAlchemyStorage, TopicPolicy
from semel import OutboxProjectorConfig

@dataclass
class Placed:
    order_id: str
    lines: list[str] = field(default_factory=list)

storage = SqlAlchemyStorage(environ["SERVICE_DATABASE"])
hub = Hub("shop", storage=storage, config=OutboxProjectorConfig(topics={"mails": TopicPolicy()}))

@hub.on("orders", "OrderPlaced")
async def reserve(order: Placed) -> None:
    print("reserved", order.order_id, flush=True)
"""


def write_service(folder: Path, text: str = SERVICE, name: str = "service") -> str:
    """Write the module, and return how `--hub` names its hub."""
    (folder / f"{name}.py").write_text(text)
    return f"{name}:hub"
