"""The tables of the database bus: logs, groups and their members."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Identity, SmallInteger, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from semel.envelope import MAX_NAME
from semel.sqlalchemy.dialects import table_options
from semel.sqlalchemy.tables import Base
from semel.sqlalchemy.types import Bytes, JsonDocument, Name, Position, UtcDateTime


class BusPartition(Base):
    """A log of a topic: its row is locked while messages are added, so positions have no gaps.

    Messages from `first_position` to just below `next_position` are kept.
    """

    __tablename__ = "bus_partition"
    __table_args__ = (
        UniqueConstraint("topic", "partition_no", name="uq_bus_partition_topic"),
        table_options(numbered=True),
    )

    id: Mapped[int] = mapped_column(
        Position, Identity(always=False, cache=1), primary_key=True, autoincrement=True
    )
    topic: Mapped[str] = mapped_column(Name(MAX_NAME))
    partition_no: Mapped[int] = mapped_column(SmallInteger)
    first_position: Mapped[int] = mapped_column(Position, server_default="0")
    next_position: Mapped[int] = mapped_column(Position, server_default="0")


class BusMessage(Base):
    """One message, at its position of a log."""

    __tablename__ = "bus_message"

    partition_id: Mapped[int] = mapped_column(Position, primary_key=True, autoincrement=False)
    position: Mapped[int] = mapped_column(Position, primary_key=True, autoincrement=False)
    message_key: Mapped[str | None] = mapped_column(Name(MAX_NAME))
    headers: Mapped[Any] = mapped_column(JsonDocument)
    body: Mapped[bytes] = mapped_column(Bytes)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class BusGroup(Base):
    """How far a group is in a log, and which member reads it.

    Everything below `position` is done; what is below `delivered` may have been delivered.
    `expires_at` is the end of the owner's lease and, without an owner, when the group was seen.
    """

    __tablename__ = "bus_group"

    group_name: Mapped[str] = mapped_column(Name(MAX_NAME), primary_key=True)
    partition_id: Mapped[int] = mapped_column(Position, primary_key=True, autoincrement=False)
    position: Mapped[int] = mapped_column(Position)
    delivered: Mapped[int] = mapped_column(Position)
    owner: Mapped[str | None] = mapped_column(Name(MAX_NAME))
    epoch: Mapped[int] = mapped_column(Position, server_default="0")
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)


class BusMember(Base):
    """A running member of a group; it counts for fair shares until it expires."""

    __tablename__ = "bus_member"

    id: Mapped[str] = mapped_column(Name(MAX_NAME), primary_key=True)
    topic: Mapped[str] = mapped_column(Name(MAX_NAME))
    group_name: Mapped[str] = mapped_column(Name(MAX_NAME))
    started_at: Mapped[datetime] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)
