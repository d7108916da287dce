"""The outbox on every database."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import pytest

from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.testing.contracts.outbox import (
    OutboxContract,
    OutboxStoreContract,
    RelayStoreContract,
)
from tests.services import Database
from tests.stores.shop import stalled_commit


class TestOutbox(OutboxContract):
    pass


class TestOutboxStore(OutboxStoreContract):
    pass


class TestRelayStore(RelayStoreContract):
    @pytest.fixture(autouse=True)
    def capabilities(self, kept: Database) -> None:
        self.sees_writers = kept.name != "sqlite"
        self.hears_other_processes = kept.name.startswith("postgres")

    def stalled_commit(
        self, storage: SqlAlchemyStorage, *, key: str | None
    ) -> AbstractAsyncContextManager[None]:
        return stalled_commit(storage, key=key)
