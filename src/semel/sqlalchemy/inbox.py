"""The inbox: which messages a consumer has dealt with."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from semel.envelope import check_name, check_tenant
from semel.errors import ConfigurationError, DuplicateMessageError
from semel.hashing import payload_hash
from semel.sqlalchemy.dialects import database_of
from semel.sqlalchemy.gate import INBOX, SqlAlchemyInboxGate
from semel.sqlalchemy.tables import InboxRecord
from semel.states import Admission, InboxStatus, Receipt

__all__ = ["SqlAlchemyInbox", "SqlAlchemyInboxGate"]

# A counter of attempts whose message never came back has nothing to protect either.
_REMOVABLE = (InboxStatus.PROCESSED.value, InboxStatus.RECEIVED.value)


class SqlAlchemyInbox:
    """Remembers processed messages in the transaction of *session*.

    They are forgotten if it is rolled back. Nothing here commits.
    """

    def __init__(
        self, session: AsyncSession, tenant_id: str = "default", *, consumer_name: str = "default"
    ) -> None:
        if not isinstance(session, AsyncSession):
            raise ConfigurationError(
                f"SqlAlchemyInbox needs an AsyncSession, not {type(session).__name__}"
            )
        self._session = session
        self.tenant_id = check_tenant(tenant_id)
        self.consumer_name = check_name("consumer_name", consumer_name)

    async def is_processed(self, message_id: str) -> bool:
        """Tell whether the message was processed. A hint: the insert is the gate."""
        found = await self._session.scalar(select(InboxRecord.status).where(self._row(message_id)))
        return found == InboxStatus.PROCESSED

    async def mark_processed(
        self,
        message_id: str,
        event_type: str,
        payload: Any | None = None,
        source: str | None = None,
        extra_data: Mapping[str, Any] | None = None,
    ) -> InboxRecord:
        """Insert the record; raise `DuplicateMessageError` if it exists.

        The payload itself is not stored, only its hash.
        """
        if not await self.try_mark_processed(message_id, event_type, payload, source, extra_data):
            raise DuplicateMessageError(
                f"message {message_id!r} was already processed by consumer "
                f"{self.consumer_name!r} of tenant {self.tenant_id!r}"
            )
        record = await self.get_record(message_id)
        assert record is not None
        return record

    async def try_mark_processed(
        self,
        message_id: str,
        event_type: str,
        payload: Any | None = None,
        source: str | None = None,
        extra_data: Mapping[str, Any] | None = None,
    ) -> bool:
        """Insert the record if absent; False if it exists.

        While another transaction holds the same id uncommitted, this call waits for its outcome.
        A duplicate leaves the caller's transaction usable.
        """
        receipt = Receipt(
            tenant_id=self.tenant_id,
            consumer_name=self.consumer_name,
            message_id=check_name("message_id", message_id),
            event_type=check_name("event_type", event_type),
            source=None if source is None else check_name("source", source),
            payload_hash=None if payload is None else payload_hash(payload),
            extra_data=extra_data,
        )
        [admission] = await SqlAlchemyInboxGate(self._session).admit([receipt])
        return admission is Admission.NEW

    async def get_record(self, message_id: str) -> InboxRecord | None:
        """Return the record, or None."""
        statement = select(InboxRecord).where(self._row(message_id))
        # The gate writes past the session: what it has loaded before may be old.
        return await self._session.scalar(statement.execution_options(populate_existing=True))

    async def cleanup_old_records(self, older_than_days: int = 30) -> int:
        """Delete this tenant's and consumer's old PROCESSED records in the caller's transaction."""
        connection = await self._session.connection()
        condition = old_records(database_of(connection.dialect).later(-_seconds(older_than_days)))
        result = await connection.execute(delete(INBOX).where(condition, *self._mine()))
        return result.rowcount

    def _mine(self) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
        return INBOX.c.tenant_id == self.tenant_id, INBOX.c.consumer_name == self.consumer_name

    def _row(self, message_id: str) -> ColumnElement[bool]:
        return and_(*self._mine(), INBOX.c.message_id == message_id)


def old_records(line: Any) -> ColumnElement[bool]:
    """Return the condition that a record is finished and older than *line*."""
    return and_(INBOX.c.processed_at < line, INBOX.c.status.in_(_REMOVABLE))


def _seconds(days: float) -> float:
    if days < 0:
        raise ConfigurationError("older_than_days must not be negative")
    return timedelta(days=days).total_seconds()
