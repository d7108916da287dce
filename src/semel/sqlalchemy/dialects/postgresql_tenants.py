"""The statements that keep tenants apart on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

SETTING = "semel.tenant"

# Without the setting, which is empty after a transaction that had it, no row matches.
_OWN = f"tenant_id = current_setting('{SETTING}', true)"
_OF_TENANTS = {
    "outbox": "SELECT, INSERT",
    "inbox": "SELECT, INSERT, UPDATE, DELETE",
    "idempotency": "SELECT, INSERT, UPDATE, DELETE",
}
_NUMBERS = ("outbox_sequence_seq", "audit_id_seq", "bus_partition_id_seq")


def policies(tables: list[str], *, tenant_role: str, relay_role: str) -> Iterator[str]:
    """Return statements after which a role sees its tenant's rows; may be run again.

    Operators' actions concern everybody: `audit` is closed to tenants.
    """
    tenant, relay = _quote(tenant_role), _quote(relay_role)
    yield f"GRANT SELECT ON outbox_control TO {tenant}"
    for table, rights in _OF_TENANTS.items():
        yield f"GRANT {rights} ON {table} TO {tenant}"
    yield f"GRANT SELECT, INSERT, UPDATE, DELETE ON {', '.join(tables)} TO {relay}"
    yield f"GRANT SELECT ON SEQUENCE {', '.join(_NUMBERS)} TO {relay}"
    for table in (*_OF_TENANTS, "audit"):
        yield f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY"
        # Also for the tables' owner: it may be the role that a service connects with.
        yield f"ALTER TABLE {table} FORCE ROW LEVEL SECURITY"
        yield f"DROP POLICY IF EXISTS semel_relay ON {table}"
        yield f"CREATE POLICY semel_relay ON {table} TO {relay} USING (true) WITH CHECK (true)"
    for table in _OF_TENANTS:
        yield f"DROP POLICY IF EXISTS semel_tenant ON {table}"
        yield (
            f"CREATE POLICY semel_tenant ON {table} TO {tenant} USING ({_OWN}) WITH CHECK ({_OWN})"
        )


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
