"""Tenants that the database itself keeps apart."""

from __future__ import annotations

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session, SessionTransaction

from semel.envelope import check_tenant
from semel.errors import ConfigurationError, TransactionMisuseError
from semel.sqlalchemy import bus_tables as _bus_tables  # noqa: F401  part of the metadata
from semel.sqlalchemy.dialects import DATABASES
from semel.sqlalchemy.tables import metadata

_TENANT = "semel.tenant"


def use_tenant(session: Session, tenant_id: str) -> None:
    """Let the session see and write rows of one tenant, in this transaction and later ones.

    With an `AsyncSession`: `await session.run_sync(use_tenant, "acme")`. A transaction has one
    tenant: all its events are written together.
    """
    tenant_id = check_tenant(tenant_id)
    running = session.in_transaction()
    if running and session.info.get(_TENANT, tenant_id) != tenant_id:
        raise TransactionMisuseError(
            "this transaction works for another tenant already: begin one for each tenant"
        )
    session.info[_TENANT] = tenant_id
    if running:
        # Every time: a savepoint that was rolled back may have taken the setting with it.
        _announce(session.connection(), tenant_id)


def row_level_security(dialect: str, *, tenant_role: str | None, relay_role: str | None) -> str:
    """Return the SQL that lets each role see what it may; run it as the tables' owner."""
    database = DATABASES.get(dialect)
    if database is None or not database.separates_tenants:
        raise ConfigurationError(f"{dialect} has no row-level security: only postgresql does")
    if not tenant_role or not relay_role or tenant_role == relay_role:
        raise ConfigurationError(
            "row-level security needs two roles: --tenant-role for processes that work for one "
            "tenant at a time, --relay-role for projectors, operators and upgrades"
        )
    statements = database.tenant_policies(
        sorted(metadata.tables), tenant_role=tenant_role, relay_role=relay_role
    )
    return "BEGIN;\n\n" + "".join(f"{statement};\n" for statement in statements) + "\nCOMMIT;\n"


def _announce(connection: Connection, tenant_id: str) -> None:
    database = DATABASES.get(connection.dialect.name)
    if database is not None:
        database.announce_tenant(connection, tenant_id)


def _begun(session: Session, transaction: SessionTransaction, connection: Connection) -> None:
    tenant_id = session.info.get(_TENANT)
    if tenant_id is not None and not transaction.nested:
        _announce(connection, tenant_id)


# On the class, once: a listener per session costs more than what it does.
event.listen(Session, "after_begin", _begun)
