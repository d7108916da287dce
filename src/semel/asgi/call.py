"""One request with an idempotency key, from the claim of the key to the end of its transaction."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NoReturn

from semel.asgi import problems
from semel.asgi.http import Scope, values
from semel.asgi.policy import HEADER, REPLAYED, IdempotencyPolicy
from semel.asgi.request import RequestBody, fingerprint
from semel.envelope import DEFAULT_TENANT
from semel.errors import (
    ConfigurationError,
    IdempotencyConflictError,
    IdempotencyKeyMissingError,
    InvalidMessageError,
    TransactionMisuseError,
    describe,
)
from semel.failpoints import failpoint
from semel.idempotency.claims import claim, release, renewing
from semel.idempotency.keys import parse_key, scoped_key
from semel.observer import NullObserver
from semel.protocols import Observer
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.sqlalchemy.uow import SQLAlchemyUnitOfWork
from semel.states import Answer, Claim, Verdict

if TYPE_CHECKING:
    from semel.sqlalchemy.sealing import Seal

CALL = "semel.idempotency"
_NAME = HEADER.lower().encode()
_logger = logging.getLogger("semel.idempotency")


class AnsweredError(Exception):
    """The request has its answer: the application need not go on."""


def idempotent_call(scope: Scope) -> IdempotentCall | None:
    """Return the request's call; None where no `IdempotencyMiddleware` is around it."""
    call: IdempotentCall | None = scope.get(CALL)
    return call


class IdempotentCall:
    """The state of one request."""

    def __init__(
        self,
        storage: SqlAlchemyStorage,
        scope: Scope,
        body: RequestBody,
        policy: IdempotencyPolicy,
        observer: Observer | None = None,
    ) -> None:
        self._storage = storage
        self._scope = scope
        self._body = body
        self._observer = observer or storage.observer or NullObserver()
        self._lease: asyncio.Task[None] | None = None
        self._seal: Seal | None = None
        self.policy = policy
        self.held: Claim | None = None
        self.verdict: Answer | None = None
        self.answered = False

    async def claim(
        self,
        *,
        principal: str | None,
        route: str,
        tenant_id: str = DEFAULT_TENANT,
        policy: IdempotencyPolicy | None = None,
    ) -> bool:
        """Claim the request's key for *principal*, after authentication and before any effect.

        False if there is no key and none is required. Raises `AnsweredError` if the request has
        its answer already, or gets a problem for one: let it pass.
        """
        if self.held is not None or self.answered:
            raise ConfigurationError(
                "an idempotency key is claimed once, and before the answer begins"
            )
        self.policy = policy or self.policy
        given = values(self._scope, _NAME)
        if not given and not self.policy.required:
            return False
        if not given:
            self._refuse(problems.KEY_MISSING)
        if len(given) > 1:
            self._refuse(problems.KEY_MALFORMED)
        try:
            key = parse_key(given[0])
        except IdempotencyKeyMissingError:
            self._refuse(problems.KEY_MALFORMED)
        if not principal:
            self._refuse(problems.CALLER_UNKNOWN)
        body = await self._body.read()
        if self._body.too_large:
            self._refuse(problems.TOO_LARGE)
        if not self._body.complete:
            self._refuse(problems.INCOMPLETE)
        try:
            scoped = scoped_key(
                key,
                method=self._scope["method"],
                route=route,
                principal=principal,
                tenant_id=tenant_id,
            )
        except InvalidMessageError:
            self._refuse(problems.TENANT_INVALID)
        try:
            found = await claim(
                self._storage.idempotency,
                scoped,
                fingerprint=fingerprint(self._scope, body),
                lease=self.policy.lease,
                keep=self.policy.keep,
                wait=self.policy.wait,
            )
        except Exception as error:
            if not self._storage.is_transient(error):
                raise
            _logger.warning("an idempotency key was not claimed: %s", describe(error))
            self._refuse(problems.UNAVAILABLE)
        self._admit(found)
        return True

    def _admit(self, found: Claim) -> None:
        if found.answer is not None:
            self._settle(_replay(found.answer), "replayed")
        if found.verdict is Verdict.MISMATCH:
            self._refuse(problems.MISMATCH)
        if found.verdict is Verdict.NOT_KEPT:
            self._refuse(problems.NOT_KEPT)
        if found.verdict is Verdict.IN_FLIGHT:
            self._refuse(problems.IN_FLIGHT)
        self.held = found
        self._count("executed")
        # A transaction is fenced by its last statement; anything else needs the lease to last.
        renewal = renewing(
            self._storage.idempotency,
            found,
            self.policy.lease,
            wanted=lambda: self._seal is None,
        )
        self._lease = asyncio.create_task(renewal, name="semel-idempotency-lease")

    def _refuse(self, problem: problems.Problem) -> NoReturn:
        waits = problem in (problems.IN_FLIGHT, problems.UNAVAILABLE)
        retry_after = self.policy.retry_after_seconds if waits else None
        self._settle(problem.answer(retry_after=retry_after), problem.name)

    def _settle(self, answer: Answer, outcome: str) -> NoReturn:
        self.verdict = answer
        self._count(outcome)
        raise AnsweredError

    def _count(self, outcome: str) -> None:
        self._observer.count("idempotency_requests_total", outcome=outcome)

    def adopt(self, uow: SQLAlchemyUnitOfWork) -> None:
        """Let *uow*, which was entered, carry the key: its commit includes the answer.

        With a claimed key `uow.commit()` flushes and seals; the middleware writes the answer on
        the same session and commits before the first byte is sent. Without a key, or after the
        answer (in a background task), nothing changes.
        """
        if self.answered:
            return
        if self._seal is not None and not self._seal.left:
            raise ConfigurationError(
                "another unit of work of this request carries its idempotency key: use one unit "
                "of work per request"
            )
        self._seal = uow.seal(lambda: self.held is not None)

    async def end(self, status: int, answer: Answer | None) -> Answer | None:
        """End the call before its answer is sent: make it durable, or undo it.

        *answer* is None for one that is not kept. Returns what must be sent instead of it.
        """
        sealed = self._seal is not None and self._seal.sealed
        if not (status in self.policy.keep_statuses or (sealed and status < 500)):
            await self.undo()
            return None
        self._close()
        try:
            if sealed:
                await self._commit(answer)
                return None
            if answer is not None:
                await self._rollback()  # what was not committed by now never is
            await self._storage.idempotency.complete(self._held, answer, keep=self.policy.keep)
        except IdempotencyConflictError as error:
            return await self._lost(error, sealed=sealed)
        except Exception as error:  # noqa: BLE001  told apart there
            return await self._failed(error, sealed=sealed)
        return None

    async def _commit(self, answer: Answer | None) -> None:
        assert self._seal is not None
        self._seal.verify()
        failpoint("request.before_answer")
        await self._storage.idempotency.complete(
            self._held, answer, keep=self.policy.keep, session=self._seal.session
        )
        failpoint("request.after_answer")
        await self._seal.commit()
        failpoint("request.after_commit")

    async def _lost(self, error: IdempotencyConflictError, *, sealed: bool) -> Answer | None:
        """Somebody has taken the key over, after the lease ran out."""
        if sealed:
            await self._rollback()
            self._count("lease-lost")
            _logger.warning("a request was undone: %s", describe(error))
            return problems.IN_FLIGHT.answer(retry_after=self.policy.retry_after_seconds)
        _logger.error("a request outlived the lease of its key: it may have been executed twice")
        return None

    async def _failed(self, error: Exception, *, sealed: bool) -> Answer | None:
        if not sealed:
            # The effects are outside of our reach: their answer is better than none.
            _logger.error("the answer of a request was not kept: %s", describe(error))
            return None
        await self._rollback()
        await release(self._storage.idempotency, self._held)
        if isinstance(error, TransactionMisuseError) or not self._storage.is_transient(error):
            raise error
        _logger.warning("a request was undone, its commit failed: %s", describe(error))
        return problems.UNAVAILABLE.answer(retry_after=self.policy.retry_after_seconds)

    async def undo(self) -> None:
        """Undo what can be, and let the key be used again."""
        self._close()
        try:
            await self._rollback()
        finally:
            await release(self._storage.idempotency, self._held)

    @property
    def _held(self) -> Claim:
        assert self.held is not None
        return self.held

    def _close(self) -> None:
        self.answered = True
        if self._lease is not None:
            self._lease.cancel()

    async def _rollback(self) -> None:
        if self._seal is not None and (self._seal.sealed or not self._seal.left):
            try:
                await self._seal.rollback()
            except Exception as error:  # noqa: BLE001  a lost connection rolls back, too
                _logger.debug("a rollback failed: %s", describe(error))


def _replay(answer: Answer) -> Answer:
    headers = [*answer.headers, ("cache-control", "no-store"), (REPLAYED.lower(), "true")]
    return Answer(status_code=answer.status_code, headers=headers, body=answer.body)
