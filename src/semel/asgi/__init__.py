"""Pure ASGI: works under FastAPI, Starlette, Litestar and whatever speaks ASGI."""

from semel.asgi.call import IdempotentCall, idempotent_call
from semel.asgi.middleware import IdempotencyMiddleware
from semel.asgi.policy import IdempotencyPolicy

__all__ = ["IdempotencyMiddleware", "IdempotencyPolicy", "IdempotentCall", "idempotent_call"]
