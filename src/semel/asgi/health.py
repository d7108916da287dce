"""Whether the process lives, and whether it is ready: for probes and for people."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Collection
from dataclasses import asdict, dataclass
from typing import Any

from semel.asgi.http import Receive, Scope, Send, answer_json, problem, route
from semel.clock import SystemClock
from semel.errors import ConfigurationError, SchemaError, describe
from semel.hub import Hub
from semel.protocols import Clock

#: What readiness looks at.
CHECKS = ("database", "schema", "bus", "consumers", "projector")

#: Tells whether the caller, known by the ASGI scope, may see the reasons.
Authorize = Callable[[Scope], bool | Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Check:
    """The outcome of one look. *reason* says what is wrong."""

    ok: bool
    reason: str | None = None


class HealthApp:
    """See `health_app`."""

    def __init__(
        self,
        hub: Hub,
        *,
        authorize: Authorize | None,
        required: Collection[str],
        timeout_seconds: float,
        cache_seconds: float,
        stalled_after: float,
        clock: Clock,
    ) -> None:
        if unknown := set(required) - set(CHECKS):
            raise ConfigurationError(
                f"required names {', '.join(sorted(unknown))}: choose from {', '.join(CHECKS)}"
            )
        if not timeout_seconds > 0 or not stalled_after > 0 or cache_seconds < 0:
            raise ConfigurationError(
                "timeout_seconds and stalled_after must be positive, cache_seconds not negative"
            )
        self._hub = hub
        self._authorize = authorize
        self._required = frozenset(required)
        self._timeout = timeout_seconds
        self._cache_seconds = cache_seconds
        self._stalled_after = stalled_after
        self._clock = clock
        self._looking: asyncio.Task[dict[str, Check]] | None = None
        self._seen: tuple[float, dict[str, Check]] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one probe."""
        if scope["type"] != "http":
            raise RuntimeError("the health application answers HTTP requests only")
        probe = {"/livez": self._live, "/readyz": self._ready}.get(route(scope))
        if probe is None:
            await problem(send, 404, "There are /livez and /readyz.")
        elif scope["method"] not in ("GET", "HEAD"):
            await problem(send, 405, "Probes are read.", headers={"allow": "GET, HEAD"})
        else:
            ok, detail = await probe()
            document: dict[str, Any] = {"status": "ok" if ok else "unavailable"}
            if await self._may_see(scope):
                document |= detail
            await answer_json(send, 200 if ok else 503, document, body=scope["method"] != "HEAD")

    async def _may_see(self, scope: Scope) -> bool:
        if self._authorize is None:
            return False
        allowed = self._authorize(scope)
        return (await allowed if inspect.isawaitable(allowed) else allowed) is True

    async def _live(self) -> tuple[bool, dict[str, Any]]:
        # That we answer shows that the event loop runs. No database: an outage is no reason to
        # restart a process.
        stalled = self._hub.stalled(after=self._stalled_after)
        return not stalled, {"stalled": stalled}

    async def _ready(self) -> tuple[bool, dict[str, Any]]:
        checks = await self._checks()
        ok = all(check.ok for name, check in checks.items() if name in self._required)
        consumers = {
            name: asdict(info) | {"last_message_at": _text(info.last_message_at)}
            for name, info in self._hub.health.get_health_status().items()
        }
        detail = {
            "checks": {name: asdict(check) for name, check in checks.items()},
            "consumers": consumers if "consumers" in self._hub.runs else {},
        }
        return ok, detail

    async def _checks(self) -> dict[str, Check]:
        """Return what is known, not older than the cache allows; all probes share one look."""
        if self._seen is not None and self._clock.monotonic() < self._seen[0]:
            return self._seen[1]
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(), name="semel-health")
        # A prober that hangs up must not end the look that others wait for.
        return await asyncio.shield(self._looking)

    async def _look(self) -> dict[str, Check]:
        (database, schema), bus, consumers = await asyncio.gather(
            self._check_database(), self._check_bus(), self._check_consumers()
        )
        checks = dict(
            zip(CHECKS, (database, schema, bus, consumers, self._check_projector()), strict=True)
        )
        self._seen = (self._clock.monotonic() + self._cache_seconds, checks)
        return checks

    async def _check_database(self) -> tuple[Check, Check]:
        try:
            async with asyncio.timeout(self._timeout):
                await self._hub.storage.check_version()
        except SchemaError as error:
            return Check(ok=True), Check(ok=False, reason=str(error))
        except Exception as error:  # noqa: BLE001  whatever it is, the database does not answer
            return Check(ok=False, reason=self._why(error)), Check(ok=False, reason="not known")
        return Check(ok=True), Check(ok=True)

    async def _check_bus(self) -> Check:
        try:
            async with asyncio.timeout(self._timeout):
                await self._hub.bus.ping()
        except Exception as error:  # noqa: BLE001  a check that fails is an answer
            return Check(ok=False, reason=self._why(error))
        return Check(ok=True)

    async def _check_consumers(self) -> Check:
        if "consumers" not in self._hub.runs:
            return Check(ok=True, reason="none runs in this process")
        try:
            async with asyncio.timeout(self._timeout):
                states = await self._hub.health.check_health()
        except Exception as error:  # noqa: BLE001  a check that fails is an answer
            return Check(ok=False, reason=self._why(error))
        bad = [f"{name}: {info.reason}" for name, info in states.items() if not info.is_healthy]
        return Check(ok=not bad, reason="; ".join(bad) or None)

    def _check_projector(self) -> Check:
        if "projector" not in self._hub.runs:
            return Check(ok=True, reason="none runs in this process")
        projector = self._hub.projector
        if projector is None or projector.seconds_since_turn is None:
            return Check(ok=False, reason="it has stopped")
        if not projector.is_ready:
            return Check(ok=False, reason=projector.waiting_for or "it has no valid lease")
        return Check(ok=True)

    def _why(self, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            return f"no answer within {self._timeout:g} seconds"
        return describe(error)


def health_app(
    hub: Hub,
    *,
    authorize: Authorize | None = None,
    required: Collection[str] = CHECKS,
    timeout_seconds: float = 2.0,
    cache_seconds: float = 1.0,
    stalled_after: float = 180.0,
    clock: Clock | None = None,
) -> HealthApp:
    """Return an ASGI application with `/livez` and `/readyz`, to be mounted anywhere.

    `/livez` looks at the event loop and the loops of projector and consumers: 503 means that a
    restart helps. `/readyz` looks at what *required* names. Reasons and the state of each
    consumer are for callers that *authorize* accepts; others learn the status alone.

    No look takes longer than *timeout_seconds*; its outcome is kept for *cache_seconds*, so that
    probes cost the database one query in that time, however many they are.
    """
    return HealthApp(
        hub,
        authorize=authorize,
        required=required,
        timeout_seconds=timeout_seconds,
        cache_seconds=cache_seconds,
        stalled_after=stalled_after,
        clock=clock or SystemClock(),
    )


def _text(moment: Any) -> str | None:
    return None if moment is None else moment.isoformat()
