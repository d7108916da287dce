"""How the tables are stored and vacuumed, where that can be set."""

from __future__ import annotations

from alembic import op

from semel.sqlalchemy.migrations.steps import database, to_version

revision = "semel_0002"
down_revision = "semel_0001"
branch_labels = None
depends_on = None


@to_version(2, compatible=1)
def upgrade() -> None:
    """Set it; nobody waits for it but a running VACUUM, which steps aside."""
    for statement in database().storage_settings():
        op.execute(statement)


def downgrade() -> None:
    """Leave it: the first version runs as well with it."""
