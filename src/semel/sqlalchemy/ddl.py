"""The statements that make the tables, as text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

from sqlalchemy import Table, create_mock_engine, insert, literal_column

from semel.errors import ConfigurationError
from semel.sqlalchemy import bus_tables as _bus_tables  # noqa: F401  part of the metadata
from semel.sqlalchemy.dialects import DATABASES
from semel.sqlalchemy.layout import SLOTS
from semel.sqlalchemy.schema import control_rows
from semel.sqlalchemy.tables import OutboxControl, OutboxSlot, metadata


def schema_sql(dialect: str) -> Iterator[str]:
    """Return what creates and fills the tables on *dialect*, statement by statement."""
    statements: list[Any] = []
    if dialect not in DATABASES:
        known = ", ".join(DATABASES)
        raise ConfigurationError(f"no dialect {dialect!r}: choose one of {known}")
    engine = create_mock_engine(f"{dialect}://", lambda made, *_, **__: statements.append(made))
    metadata.create_all(engine, checkfirst=False)
    slots = [{"slot": slot} for slot in range(SLOTS)]
    statements.append(insert(cast("Table", OutboxSlot.__table__)).values(slots))
    # SQLAlchemy cannot write JSON as a literal; ours has no quote in it.
    rows = [
        {"name": name, "value": literal_column(f"'{json.dumps(value)}'")}
        for name, value in control_rows().items()
    ]
    statements.append(insert(cast("Table", OutboxControl.__table__)).values(rows))
    for statement in statements:
        text = statement.compile(dialect=engine.dialect, compile_kwargs={"literal_binds": True})
        yield str(text).strip()
