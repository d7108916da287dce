"""Ways to know who asks: passwords, tokens, a proxy that has asked before."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import inspect
import secrets
from base64 import b64decode
from binascii import Error as NotBase64
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from semel.clock import SystemClock
from semel.dashboard.access import VIEWER, Action, DashboardAuth, Granted, Principal
from semel.dashboard.passwords import check_hash, hash_password, is_password, is_token
from semel.envelope import check_name, check_tenant
from semel.errors import ConfigurationError
from semel.protocols import Clock

K = TypeVar("K")
V = TypeVar("V")

_KEPT_SECONDS = 300.0
_KEPT = 1000
_FAILURES, _FAILURE_SECONDS = 10, 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A person or a program. *secret_hash* is made by `hash_password` or `hash_token`."""

    name: str
    secret_hash: str
    actions: frozenset[Action] = VIEWER
    tenants: frozenset[str] | None = None

    def __post_init__(self) -> None:
        check_name("an account's name", self.name)
        check_hash(self.secret_hash)
        for tenant in self.tenants or ():
            check_tenant(tenant)

    def principal(self, *, bearer: bool = False) -> Principal:
        """Return who it is once the secret was right."""
        return Principal(name=self.name, actions=self.actions, tenants=self.tenants, bearer=bearer)

    def __repr__(self) -> str:
        return f"Account(name={self.name!r})"


class BasicAuth(Granted):
    """Name and password, by HTTP Basic: use it behind TLS.

    After ten wrong passwords from an address in a minute it answers 429.
    """

    def __init__(self, accounts: Iterable[Account], *, clock: Clock | None = None) -> None:
        self._accounts = _by_name(accounts, "scrypt:")
        self._clock = clock or SystemClock()
        self._decoy = hash_password(secrets.token_urlsafe())
        # scrypt is slow on purpose, and a page is many requests: what was right is kept for a
        # while, as a digest that means nothing outside this process.
        self._key = secrets.token_bytes(32)
        self._right: OrderedDict[bytes, float] = OrderedDict()
        self._wrong: OrderedDict[str, list[float]] = OrderedDict()

    async def authenticate(self, request: Request) -> Principal | Response:
        """Look at the Authorization header."""
        given = _credentials(request, "basic")
        if given is None:
            return _refused()
        name, password = _split(given)
        account = self._accounts.get(name)
        digest = hmac.digest(self._key, given.encode("latin-1"), hashlib.sha256)
        now = self._clock.monotonic()
        if account is not None and self._right.get(digest, 0.0) > now:
            return account.principal()
        address = request.client.host if request.client else ""
        recent = [at for at in self._wrong.get(address, ()) if at > now - _FAILURE_SECONDS]
        if len(recent) >= _FAILURES:
            return PlainTextResponse(
                "Too many wrong passwords: wait a minute.", 429, headers={"Retry-After": "60"}
            )
        stored = account.secret_hash if account is not None else self._decoy
        right = await asyncio.to_thread(is_password, password, stored)
        if account is None or not right:
            _keep(self._wrong, address, [*recent, now])
            return _refused()
        _keep(self._right, digest, now + _KEPT_SECONDS)
        return account.principal()


class TokenAuth(Granted):
    """`Authorization: Bearer ...`, for programs that use the API."""

    def __init__(self, accounts: Iterable[Account]) -> None:
        self._accounts = _by_name(accounts, "sha256:")

    def authenticate(self, request: Request) -> Principal | Response:
        """Look at the Authorization header."""
        token = _credentials(request, "bearer")
        if token is not None:
            # All of them, always: how long it takes tells nothing.
            found = [a for a in self._accounts.values() if is_token(token, a.secret_hash)]
            if found:
                return found[0].principal(bearer=True)
        return PlainTextResponse(
            "A token is needed.", 401, headers={"WWW-Authenticate": 'Bearer realm="semel"'}
        )


class ProxyAuth(Granted):
    """Trusts a header that a proxy in front sets, and only from that proxy's addresses.

    The proxy must remove the header from what clients send. *principal* makes of a name whoever
    it is; None refuses.
    """

    def __init__(
        self,
        principal: Callable[[str], Principal | None],
        *,
        proxies: Iterable[str],
        header: str = "X-Forwarded-User",
    ) -> None:
        self._principal = principal
        self._header = header.lower()
        try:
            self._networks = [ip_network(proxy) for proxy in proxies]
        except ValueError as error:
            raise ConfigurationError(f"proxies are addresses or networks: {error}") from None
        if not self._networks:
            raise ConfigurationError("name the addresses of the proxy, such as 10.0.0.5")

    def authenticate(self, request: Request) -> Principal | Response:
        """Look at the peer's address, then at the header."""
        names = request.headers.getlist(self._header)
        if len(names) == 1 and self._is_proxy(request.client.host if request.client else ""):
            found = self._principal(names[0])
            if found is not None:
                return found
        return PlainTextResponse("This page is behind a proxy that knows its users.", 401)

    def _is_proxy(self, host: str) -> bool:
        try:
            address = ip_address(host)
        except ValueError:
            return False
        return any(address in network for network in self._networks)


class AnyOf(Granted):
    """Asks several in turn; the last one's refusal is the answer."""

    def __init__(self, *others: DashboardAuth) -> None:
        if not others:
            raise ConfigurationError("AnyOf needs at least one way to authenticate")
        self._others = others

    async def authenticate(self, request: Request) -> Principal | Response:
        """Return the first principal."""
        answer: Principal | Response = _refused()
        for other in self._others:
            found = other.authenticate(request)
            answer = await found if inspect.isawaitable(found) else found
            if isinstance(answer, Principal):
                return answer
        return answer


def _by_name(accounts: Iterable[Account], kind: str) -> dict[str, Account]:
    known: dict[str, Account] = {}
    for account in accounts:
        if not account.secret_hash.startswith(kind):
            raise ConfigurationError(f"{account!r} has the hash of another kind of secret")
        if account.name in known:
            raise ConfigurationError(f"two accounts are called {account.name!r}")
        known[account.name] = account
    if not known:
        raise ConfigurationError("there is no account: nobody could come in")
    return known


def _keep(kept: OrderedDict[K, V], key: K, value: V) -> None:
    kept[key] = value
    kept.move_to_end(key)
    while len(kept) > _KEPT:
        kept.popitem(last=False)


def _credentials(request: Request, scheme: str) -> str | None:
    given = request.headers.getlist("authorization")
    if len(given) != 1:
        return None
    name, _, rest = given[0].partition(" ")
    return rest.strip() if name.lower() == scheme else None


def _split(given: str) -> tuple[str, str]:
    try:
        text = b64decode(given, validate=True).decode()
    except (NotBase64, UnicodeDecodeError, ValueError):
        return "", ""
    name, _, password = text.partition(":")
    return name, password


def _refused() -> Response:
    return PlainTextResponse(
        "Name and password are needed.",
        401,
        headers={"WWW-Authenticate": 'Basic realm="semel", charset="UTF-8"'},
    )
