"""Which doctor is for which database."""

from __future__ import annotations

from types import ModuleType

from sqlalchemy import Dialect

from semel.sqlalchemy.dialects import doctor_mysql, doctor_postgresql, doctor_sqlite

_DOCTORS = {
    "postgresql": doctor_postgresql,
    "mysql": doctor_mysql,
    "mariadb": doctor_mysql,
    "sqlite": doctor_sqlite,
}


def doctor_of(dialect: Dialect) -> ModuleType:
    """Return the module with `examine(connection)` and `probe(engine)` for *dialect*."""
    return _DOCTORS[dialect.name]
