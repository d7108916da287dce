"""Pure ASGI: works under FastAPI, Starlette, Litestar and whatever speaks ASGI."""

from semel.asgi.call import IdempotentCall, idempotent_call
from semel.asgi.context import RequestContextMiddleware
from semel.asgi.health import health_app
from semel.asgi.live import LiveEvents
from semel.asgi.middleware import IdempotencyMiddleware
from semel.asgi.policy import IdempotencyPolicy
from semel.asgi.stream import Viewer

__all__ = [
    "IdempotencyMiddleware",
    "IdempotencyPolicy",
    "IdempotentCall",
    "LiveEvents",
    "RequestContextMiddleware",
    "Viewer",
    "health_app",
    "idempotent_call",
]
