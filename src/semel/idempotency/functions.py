"""Functions and commands that run once per key."""

from __future__ import annotations

import asyncio
import functools
import inspect
import typing
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar

from semel.binding import convert_to, name_of
from semel.clock import SystemClock
from semel.context import requested
from semel.envelope import DEFAULT_TENANT
from semel.errors import ConfigurationError, SerializationError
from semel.failpoints import failpoint
from semel.hashing import payload_hash
from semel.idempotency.claims import claim, refusal, release, renewing
from semel.idempotency.keys import scoped_key
from semel.protocols import Clock, Serializer, Storage, UnitOfWork
from semel.serializers import JsonSerializer
from semel.states import Answer, Claim, IdempotencyKey, Verdict

P = ParamSpec("P")
R = TypeVar("R")

#: Of keys that no user of an API brought.
SYSTEM = "system"


class Idempotency:
    """Runs functions once per key, and returns the first result to everybody who asks again.

    Results are kept for *keep*. A process that dies gives its key back after *lease*; until then
    others wait for *wait*, then `IdempotencyConflictError` is raised.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        keep: timedelta = timedelta(hours=24),
        lease: timedelta = timedelta(seconds=60),
        wait: timedelta = timedelta(seconds=10),
        serializer: Serializer | None = None,
        clock: Clock | None = None,
    ) -> None:
        if lease <= timedelta(0) or keep <= timedelta(0):
            raise ConfigurationError("Idempotency: keep and lease must be longer than nothing")
        self._storage = storage
        self.keep = keep
        self.lease = lease
        self.wait = wait
        self._serializer = serializer or JsonSerializer()
        self._clock = clock or SystemClock()

    async def run(
        self,
        key: str,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        arguments: Any = None,
        returns: Any = Any,
        tenant_id: str = DEFAULT_TENANT,
        principal: str = SYSTEM,
        uow: UnitOfWork | None = None,
    ) -> Any:
        """Call *function* unless it was called with *key* before; return its result.

        A function with a parameter gets a unit of work: what it does through it commits together
        with the result. Without a parameter its effects are its own, and a crash in the middle
        may repeat them. With *uow* all happens in that transaction, and its owner commits.
        Keys are told apart by *name*, which is the function's. The same key with other
        *arguments* raises `IdempotencyMismatchError`. An exception propagates, and the key may be
        used again. The result must be JSON, or become a *returns* again after it was.
        """
        scoped = scoped_key(
            key,
            method="CALL",
            route=name or name_of(function),
            principal=principal,
            tenant_id=tenant_id,
        )
        fingerprint = payload_hash(arguments)
        if fingerprint is None:
            raise SerializationError("the arguments of an idempotent call cannot be compared")
        takes_uow = bool(inspect.signature(function).parameters)
        kept = _Kept(self._serializer, returns)
        with requested(lambda: scoped):
            if uow is not None:
                return await self._join(
                    scoped, fingerprint, function, takes_uow, kept=kept, uow=uow
                )
            return await self._own(scoped, fingerprint, function, takes_uow, kept=kept)

    async def _own(
        self,
        key: IdempotencyKey,
        fingerprint: str,
        function: Callable[..., Any],
        takes_uow: bool,
        *,
        kept: _Kept,
    ) -> Any:
        store = self._storage.idempotency
        held = await claim(
            store,
            key,
            fingerprint=fingerprint,
            lease=self.lease,
            keep=self.keep,
            wait=self.wait,
            clock=self._clock,
        )
        if held.verdict is not Verdict.CLAIMED:
            return kept.value(_known(held))
        try:
            if not takes_uow:
                lease = asyncio.create_task(renewing(store, held, self.lease, clock=self._clock))
                try:
                    answer, value = kept.answer(await _awaited(function()))
                finally:
                    lease.cancel()
                await store.complete(held, answer, keep=self.keep)
                failpoint("idempotency.after_result")
                return value
            async with self._storage.unit_of_work(tenant_id=key.tenant_id) as uow:
                with self._storage.lend(uow):
                    answer, value = kept.answer(await _awaited(function(uow)))
                failpoint("idempotency.after_function")
                await store.complete(held, answer, keep=self.keep, session=uow.session)
                failpoint("idempotency.before_commit")
                await uow.commit()
                failpoint("idempotency.after_commit")
                return value
        except BaseException:
            await release(store, held)
            raise

    async def _join(
        self,
        key: IdempotencyKey,
        fingerprint: str,
        function: Callable[..., Any],
        takes_uow: bool,
        *,
        kept: _Kept,
        uow: UnitOfWork,
    ) -> Any:
        store, session = self._storage.idempotency, uow.session
        # Without it a caller who catches an error and commits would keep the claim.
        async with self._storage.gate(uow).savepoint():
            held = await claim(
                store,
                key,
                fingerprint=fingerprint,
                lease=self.lease,
                keep=self.keep,
                session=session,
                clock=self._clock,
            )
            if held.verdict is not Verdict.CLAIMED:
                return kept.value(_known(held))
            answer, value = kept.answer(await _awaited(function(uow) if takes_uow else function()))
            await store.complete(held, answer, keep=self.keep, session=session)
            return value


class _Kept:
    """How a result is kept, and what becomes of it when it is asked for again."""

    def __init__(self, serializer: Serializer, returns: Any) -> None:
        self._serializer = serializer
        self._returns = returns

    def answer(self, result: Any) -> tuple[Answer, Any]:
        """Return what to keep, and what everybody gets, the first caller too."""
        body = self._serializer.dumps(result)
        kind = ("content-type", self._serializer.content_type)
        return Answer(status_code=200, headers=[kind], body=body), self.value(body)

    def value(self, body: bytes) -> Any:
        """Return the result again; before a commit, so that no effect is without its result."""
        try:
            return convert_to(self._returns, self._serializer.loads(body))
        except SerializationError as error:
            raise SerializationError(
                f"the result was kept as {self._serializer.content_type} and cannot be made again: "
                f"{error}. Let the function return, and be annotated with, dicts, lists, strings, "
                "numbers, dates, a dataclass, a pydantic model or a msgspec struct"
            ) from None


def idempotent(
    storage: Storage | Idempotency,
    *,
    key: Callable[..., str],
    name: str | None = None,
) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Awaitable[R]]]:
    """Let a function run once per *key*, which is made of its arguments.

    A parameter called `uow` is given a unit of work: callers leave it out. The arguments are
    compared, so that a key cannot stand for two different calls.

    >>> @idempotent(storage, key=lambda order_id, cents: order_id)         # doctest: +SKIP
    ... async def charge(order_id: str, cents: int, uow: UnitOfWork) -> dict[str, int]: ...
    """
    runner = storage if isinstance(storage, Idempotency) else Idempotency(storage)

    def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
        signature = inspect.signature(function)
        takes_uow = "uow" in signature.parameters
        outer = signature.replace(
            parameters=[p for p in signature.parameters.values() if p.name != "uow"]
        )
        returns = returned(function)

        @functools.wraps(function)
        async def once(*args: P.args, **kwargs: P.kwargs) -> R:
            bound = outer.bind(*args, **kwargs)
            bound.apply_defaults()

            async def with_uow(uow: UnitOfWork) -> R:
                full = inspect.BoundArguments(signature, {**bound.arguments, "uow": uow})
                return await function(*full.args, **full.kwargs)

            async def without() -> R:
                return await function(*bound.args, **bound.kwargs)

            result: R = await runner.run(
                key(*args, **kwargs),
                with_uow if takes_uow else without,
                name=name or name_of(function),
                arguments=dict(bound.arguments),
                returns=returns,
            )
            return result

        once.__signature__ = outer  # type: ignore[attr-defined]
        return once

    return decorate


def returned(function: Callable[..., Any]) -> Any:
    """Return the type that *function* is annotated to return; `Any` if it tells none."""
    try:
        return typing.get_type_hints(function).get("return", Any)
    except (NameError, TypeError):
        return Any


def _known(held: Claim) -> bytes:
    if held.answer is None:
        raise refusal(held.verdict)
    return held.answer.body


async def _awaited(result: Any) -> Any:
    return await result if inspect.isawaitable(result) else result
