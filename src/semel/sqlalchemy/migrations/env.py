"""Run by Alembic for `semel db upgrade` and `semel db sql`; a service's own Alembic has its own."""

from __future__ import annotations

from alembic import context

from semel.sqlalchemy.migrations import VERSION_TABLE

if context.is_offline_mode():
    context.configure(
        dialect_name=context.config.attributes["dialect"],
        version_table=VERSION_TABLE,
        literal_binds=True,
    )
else:
    context.configure(
        connection=context.config.attributes["connection"], version_table=VERSION_TABLE
    )
with context.begin_transaction():
    context.run_migrations()
