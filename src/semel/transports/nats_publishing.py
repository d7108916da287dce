"""How a batch goes to JetStream, and what its answers mean."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Mapping
from itertools import count
from typing import NamedTuple

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from semel.errors import PublishError, PublishErrorKind, describe
from semel.transports.base import Outcomes

WINDOW = 2000
_LOOK_SECONDS = 0.2
_HEADER_ROOM = 64 * 1024

Address = tuple[str, dict[str, str], bytes]


class Row(NamedTuple):
    """One line of the error table; docs/transports/nats.md shows them all."""

    kind: PublishErrorKind
    meaning: str


ERRORS: Mapping[str, Row] = {
    "max_payload": Row("permanent", "body and headers exceed the server's max_payload; not sent"),
    "10054": Row("permanent", "the message exceeds the stream's max_msg_size"),
    "503": Row("destination", "no stream takes the subject, or it has no leader"),
    "10003": Row("destination", "bad request: the server does not understand this client"),
    "10008": Row("destination", "JetStream is temporarily unavailable"),
    "10009": Row("destination", "the cluster has no leader"),
    "10023": Row("destination", "insufficient resources"),
    "10028": Row("destination", "memory limit of the account exceeded"),
    "10035": Row("destination", "JetStream is not enabled"),
    "10039": Row("destination", "JetStream is not enabled for the account"),
    "10047": Row("destination", "storage limit of the server or account exceeded"),
    "10059": Row("destination", "the stream does not exist"),
    "10060": Row("destination", "another stream took the subject; nothing was stored"),
    "10077": Row("destination", "the stream is full (discard: new), or cannot store on its disk"),
    "10109": Row("destination", "the stream is sealed: read-only"),
    "permission": Row("destination", "the user may not publish to the subject"),
    "connect": Row("destination", "no connection, or wrong credentials; not sent"),
    "lost": Row("unknown", "the connection was lost before the answer came"),
    "timeout": Row("unknown", "no answer in time"),
    "other": Row("transient", "any other refusal"),
}


def classify(error: BaseException) -> PublishErrorKind:
    """Return the kind of what nats-py raised."""
    if isinstance(error, nats.js.errors.APIError):
        row = ERRORS.get(str(error.err_code)) or ERRORS.get(str(error.code)) or ERRORS["other"]
        return row.kind
    if isinstance(error, nats.errors.MaxPayloadError):
        return ERRORS["max_payload"].kind
    if isinstance(error, nats.errors.NoRespondersError | nats.js.errors.NoStreamResponseError):
        return ERRORS["503"].kind
    if isinstance(error, TimeoutError):
        return ERRORS["timeout"].kind
    if isinstance(error, nats.errors.Error | OSError):
        return ERRORS["connect"].kind
    return ERRORS["other"].kind


def _failure(sign: str, detail: str = "") -> PublishError:
    row = ERRORS.get(sign) or ERRORS["other"]
    return PublishError(detail or row.meaning, kind=row.kind)


class _Item(NamedTuple):
    at: int
    lane: tuple[str, str] | None
    subject: str
    headers: dict[str, str]
    body: bytes


class Flights:
    """Which answer belongs to which batch."""

    def __init__(self) -> None:
        self._flying: dict[str, Batch] = {}
        self._numbers = count()

    def take_off(self, batch: Batch) -> str:
        """Return a fresh token for a message of *batch*."""
        token = str(next(self._numbers))
        self._flying[token] = batch
        return token

    def land(self, message: Msg) -> None:
        """Hand an answer to its batch, if that still waits."""
        token = message.subject.rpartition(".")[2]
        batch = self._flying.pop(token, None)
        if batch is not None:
            batch.answered(token, message)

    def forget(self, token: str) -> None:
        """Expect this answer no more."""
        self._flying.pop(token, None)

    def note(self, error: Exception) -> None:
        """Take in what the server says without being asked: it answers no publisher."""
        text = describe(error).lower()  # as some versions of the client give it
        if "permissions violation for publish" in text:
            for batch in set(self._flying.values()):
                batch.denied(text)


class Batch:
    """Up to `WINDOW` messages in flight, but one of each key.

    JetStream accepts or refuses each message alone. Were two of one key in flight, the second
    might be stored although the first was not.
    """

    def __init__(
        self, client: Client, flights: Flights, outcomes: Outcomes, *, inbox: str, timeout: float
    ) -> None:
        self.unanswered = False  # nobody took a message: the stream may be gone
        self._client = client
        self._flights = flights
        self._outcomes = outcomes
        self._inbox = inbox
        self._timeout = timeout
        self._reconnects = client.stats["reconnects"]
        self._ready: deque[_Item] = deque()
        self._behind: dict[tuple[str, str], deque[_Item]] = {}
        self._in_flight: dict[str, _Item] = {}
        self._wake = asyncio.Event()

    def add(self, index: int, address: Address) -> None:
        """Accept a message; one whose key is in flight waits for it."""
        message = self._outcomes.messages[index]
        key = message.order_key
        lane = None if key is None else (message.tenant_id, key)
        item = _Item(index, lane, *address)
        if lane is None:
            self._ready.append(item)
        elif (behind := self._behind.get(lane)) is not None:
            behind.append(item)
        else:
            self._behind[lane] = deque()
            self._ready.append(item)

    async def run(self) -> None:
        """Return once every message has its outcome."""
        try:
            await self._run()
        finally:
            for token in self._in_flight:
                self._flights.forget(token)

    def answered(self, token: str, message: Msg) -> None:
        """Take the server's word about one message."""
        item = self._in_flight.pop(token)
        error = self._read(message)
        if error is not None:
            self._fail(item, error)
        elif item.lane is not None and (behind := self._behind[item.lane]):
            self._ready.append(behind.popleft())
        self._wake.set()

    def denied(self, text: str) -> None:
        """Fail what the server refused for lack of rights; it names the subject only."""
        for token, item in list(self._in_flight.items()):
            if f'"{item.subject}"'.lower() in text:
                self._flights.forget(token)
                del self._in_flight[token]
                self._fail(item, _failure("permission", text))
        self._wake.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout
        while self._ready or self._in_flight:
            self._wake.clear()
            if self._lost():
                self._give_up("lost")
                return
            while self._ready and len(self._in_flight) < WINDOW:
                await self._launch(self._ready.popleft())
            if not self._in_flight:
                continue
            try:
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._wake.wait()
                deadline = loop.time() + self._timeout
            except TimeoutError:
                if loop.time() >= deadline:
                    self._give_up("timeout")
                    return

    def _lost(self) -> bool:
        client = self._client
        return not client.is_connected or client.stats["reconnects"] != self._reconnects

    async def _launch(self, item: _Item) -> None:
        if not self._outcomes.admits(item.at):
            return
        if self._is_too_large(item.headers, item.body):
            limit = f"{ERRORS['max_payload'].meaning} ({self._client.max_payload} bytes)"
            self._fail(item, _failure("max_payload", limit))
            return
        token = self._flights.take_off(self)
        self._in_flight[token] = item
        try:
            await self._client.publish(
                item.subject, item.body, f"{self._inbox}.{token}", item.headers
            )
        except (nats.errors.Error, OSError) as error:
            self._flights.forget(token)
            if self._in_flight.pop(token, None) is not None:
                self._fail(item, PublishError(describe(error), kind=classify(error)))

    def _is_too_large(self, headers: Mapping[str, str], body: bytes) -> bool:
        # The server counts the headers too, and ends the connection instead of answering.
        limit = self._client.max_payload
        if len(body) + _HEADER_ROOM <= limit:
            return False
        size = sum(len(name.encode()) + len(value.encode()) + 4 for name, value in headers.items())
        return len(body) + size + len("NATS/1.0\r\n\r\n") > limit

    def _read(self, message: Msg) -> PublishError | None:
        status = message.headers.get("Status") if message.headers else None
        if status is not None:
            self.unanswered = True
            return _failure(status)
        if b'"seq"' in message.data and b'"error"' not in message.data:
            return None  # a duplicate is confirmed too: the first one is there
        try:
            answer = json.loads(message.data)
            problem = answer.get("error")
            sign = str(problem.get("err_code"))
            return _failure(sign, f"{problem.get('description')} ({sign})")
        except (ValueError, AttributeError):
            return _failure("other", "not an answer of JetStream")

    def _fail(self, item: _Item, error: PublishError) -> None:
        self._outcomes.fail(item.at, error)
        if item.lane is not None:
            for later in self._behind.pop(item.lane, ()):
                self._outcomes.admits(later.at)

    def _give_up(self, sign: str) -> None:
        for token, item in self._in_flight.items():
            self._flights.forget(token)
            self._fail(item, _failure(sign))
        self._in_flight.clear()
        for item in self._ready:
            if self._outcomes.admits(item.at):
                self._fail(item, _failure("connect", "the connection was lost; not sent"))
        self._ready.clear()
