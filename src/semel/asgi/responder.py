"""One request: the application's answer is held back until it is durable."""

from __future__ import annotations

from semel.asgi.call import AnsweredError, IdempotentCall
from semel.asgi.http import ASGIApp, Message, Receive, Scope, Send
from semel.failpoints import failpoint
from semel.states import Answer
from semel.tasks import unbroken

_EVENT_STREAM = "text/event-stream"


class Responder:
    """Runs the application with *call*, and sends its answer."""

    def __init__(self, app: ASGIApp, call: IdempotentCall, send: Send) -> None:
        self._app = app
        self._call = call
        self._send = send
        self._start: Message | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._passing = False
        self._failure: Exception | None = None
        #: Whether the application has done something without a claim.
        self.unclaimed = False

    async def __call__(self, scope: Scope, receive: Receive) -> None:
        """Answer the request."""
        call = self._call
        try:
            await self._app(scope, receive, self.send)
        except Exception as error:
            # Once the request has its answer, an error of the application is on its way out.
            if not (self._failure or call.verdict or isinstance(error, AnsweredError)):
                raise
        finally:
            if call.held is not None and not call.answered:
                # It raised, was cancelled, or ended before its answer did.
                await unbroken(call.undo())
        if self._failure is not None:
            raise self._failure
        if call.verdict is not None:
            await send_answer(self._send, call.verdict)
        elif not self._passing:
            await self._flush()

    async def send(self, message: Message) -> None:
        """Be the application's `send`."""
        call = self._call
        if call.verdict is not None or self._failure is not None:
            return
        if self._passing or call.held is None:
            if not self._passing and message.get("status", 400) < 400:
                self.unclaimed = True
            self._passing = call.answered = True
            await self._send(message)
            return
        kind = message["type"]
        if kind == "http.response.start":
            self._start = message
            if not self._can_keep(message):
                await self._pass()
        elif kind == "http.response.body" and self._start is not None:
            await self._hold(message)
        elif self._start is None:
            await self._send(message)
        else:
            # A file sent by the server, trailers: nothing that could be kept.
            await self._pass()
            await self.send(message)

    async def _hold(self, message: Message) -> None:
        part = message.get("body", b"")
        more = message.get("more_body", False)
        self._parts.append(part)
        self._size += len(part)
        policy = self._call.policy
        if self._size > policy.max_response_bytes or (more and not policy.keep_streams):
            await self._pass(more=more)
        elif not more:
            await self._finish()

    def _can_keep(self, start: Message) -> bool:
        for name, value in start.get("headers", ()):
            lowered = name.lower()
            if lowered == b"content-length" and value.isdigit():
                if int(value) > self._call.policy.max_response_bytes:
                    return False
            elif lowered == b"content-type" and value.lower().startswith(_EVENT_STREAM.encode()):
                return False
        return not start.get("trailers", False)

    async def _finish(self) -> None:
        assert self._start is not None
        allowed = self._call.policy.replay_headers
        headers = [
            (name.decode("latin-1").lower(), value.decode("latin-1"))
            for name, value in self._start.get("headers", ())
            if name.decode("latin-1").lower() in allowed
        ]
        status: int = self._start["status"]
        await self._end(Answer(status_code=status, headers=headers, body=b"".join(self._parts)))
        await self._flush()

    async def _pass(self, *, more: bool = True) -> None:
        """Make the effects durable without their answer, and let it through from now on."""
        await self._end(None)
        await self._flush(more=more)

    async def _end(self, answer: Answer | None) -> None:
        """End the call; raises if it was undone: the application must not go on."""
        assert self._start is not None
        try:
            instead = await unbroken(self._call.end(self._start["status"], answer))
        except Exception as error:
            self._failure = error
            raise
        if instead is not None:
            self._call.verdict = instead
            raise AnsweredError
        self._passing = True

    async def _flush(self, *, more: bool = False) -> None:
        if self._start is not None:
            start, self._start = self._start, None
            body = b"".join(self._parts)
            self._parts.clear()
            await self._send(start)
            failpoint("request.after_first_byte")
            if body or not more:
                await self._send({"type": "http.response.body", "body": body, "more_body": more})


async def send_answer(send: Send, answer: Answer) -> None:
    """Send a whole answer."""
    headers = [(n.encode("latin-1"), v.encode("latin-1")) for n, v in answer.headers]
    if answer.status_code >= 200 and answer.status_code not in (204, 304):
        headers.append((b"content-length", str(len(answer.body)).encode()))
    await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body, "more_body": False})
