"""FastAPI: dependencies, and what its documents say of semel."""

from semel.errors import missing_extra

try:
    import fastapi as _fastapi  # noqa: F401
except ImportError as missing:
    raise ImportError(missing_extra("semel.fastapi", "fastapi")) from missing

from semel.fastapi.dependencies import unit_of_work

__all__ = ["unit_of_work"]
