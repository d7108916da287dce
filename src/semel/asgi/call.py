"""One request with an idempotency key: how the application claims the key and joins its answer."""

from __future__ import annotations

from typing import Any

from semel.asgi.http import Scope
from semel.errors import ConfigurationError
from semel.sqlalchemy.sealing import Seal
from semel.sqlalchemy.uow import SQLAlchemyUnitOfWork

CALL = "semel.idempotency"


def idempotent_call(scope: Scope) -> IdempotentCall | None:
    """Return the request's call; None where no `IdempotencyMiddleware` is around it."""
    call: IdempotentCall | None = scope.get(CALL)
    return call


class IdempotentCall:
    """The state of one request, from its claim to its answer."""

    def __init__(self) -> None:
        self.claim: Any = None
        self.seal: Seal | None = None
        self.answered = False

    def adopt(self, uow: SQLAlchemyUnitOfWork) -> None:
        """Let *uow*, which was entered, carry the key: its commit includes the answer.

        With a claimed key `uow.commit()` flushes and seals; the middleware writes the answer on
        the same session and commits before the first byte is sent. Without a key, or after the
        answer (in a background task), nothing changes.
        """
        if self.answered:
            return
        if self.seal is not None and not self.seal.left:
            raise ConfigurationError(
                "another unit of work of this request carries its idempotency key: use one unit "
                "of work per request"
            )
        self.seal = uow.seal(lambda: self.claim is not None)
