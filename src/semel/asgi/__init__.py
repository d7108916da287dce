"""Pure ASGI: works under FastAPI, Starlette, Litestar and whatever speaks ASGI."""

from semel.asgi.call import IdempotentCall, idempotent_call

__all__ = ["IdempotentCall", "idempotent_call"]
