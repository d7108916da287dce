"""FastAPI: dependencies, and what its documents say of semel."""

from semel.errors import missing_extra

try:
    import fastapi as _fastapi  # noqa: F401
except ImportError as missing:
    raise ImportError(missing_extra("semel.fastapi", "fastapi")) from missing

from semel.fastapi.dependencies import unit_of_work
from semel.fastapi.idempotency import describe_idempotency, idempotency_key

__all__ = ["describe_idempotency", "idempotency_key", "unit_of_work"]
