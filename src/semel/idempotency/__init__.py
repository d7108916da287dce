"""Calls that happen once per key, however often they are asked for."""

from semel.idempotency.functions import Idempotency, idempotent

__all__ = ["Idempotency", "idempotent"]
