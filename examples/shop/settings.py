"""Two settings decide on what the shop runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

SERVICES = ("orders", "stock", "payments")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The database and the bus; without a bus, the database is the broker."""

    database_url: str = "sqlite+aiosqlite:///semel-shop.db"
    bus_url: str = "database://"
    topics: str = "shop"
    services: tuple[str, ...] = SERVICES

    @classmethod
    def from_env(
        cls, services: tuple[str, ...] = SERVICES, environ: Mapping[str, str] | None = None
    ) -> Self:
        """Read `SHOP_DATABASE_URL` and `SHOP_BUS_URL`."""
        environ = os.environ if environ is None else environ
        given = {
            name: environ[variable]
            for name, variable in (
                ("database_url", "SHOP_DATABASE_URL"),
                ("bus_url", "SHOP_BUS_URL"),
                ("topics", "SHOP_TOPICS"),
            )
            if environ.get(variable)
        }
        return cls(services=services, **given)

    def topic(self, name: str) -> str:
        """Return the full name of a topic: brokers are shared."""
        return f"{self.topics}.{name}"
