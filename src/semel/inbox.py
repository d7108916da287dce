"""Processing a message once: gate, handler and commit in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from semel.binding import Handler, call, name_of, takes_second
from semel.clock import SystemClock
from semel.dead_letters import BINARY
from semel.envelope import DEFAULT_TENANT, MessageEnvelope, check_name, check_tenant
from semel.errors import SerializationError
from semel.hashing import payload_hash
from semel.observer import NullObserver
from semel.processing import InboxResult, Job, Outcome, Processor, receipt_of
from semel.protocols import Clock, Observer, Storage, UnitOfWork
from semel.serializers import JsonSerializer
from semel.states import Receipt

__all__ = ["ConsumerInbox", "InboxResult", "Outcome"]


class ConsumerInbox:
    """Runs a handler once per message, for one consumer.

    Use the same *consumer_name* in all instances of a service, another one per service.
    What the handler does through its unit of work commits together with the inbox row.
    """

    def __init__(
        self,
        storage: Storage,
        consumer_name: str,
        *,
        tenant_id: str = DEFAULT_TENANT,
        keep_payload: bool = False,
        observer: Observer | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._storage = storage
        self.consumer_name = check_name("consumer_name", consumer_name)
        self.tenant_id = check_tenant(tenant_id)
        self._keep_payload = keep_payload
        self._processor = Processor(
            storage,
            consumer_name,
            observer=observer or NullObserver(),
            clock=clock or SystemClock(),
        )

    async def process_idempotent(
        self,
        event_id: str,
        source_topic: str,
        event_type: str,
        payload: Any,
        handler: Handler,
        *,
        session: Any | None = None,
        cause: MessageEnvelope | None = None,
    ) -> Any | None:
        """Run *handler* unless the message was processed; return its result, None if it was.

        The handler takes the payload, and the unit of work if it has a second parameter.
        Its exception propagates as it is and undoes everything. With *session* all this happens
        in that session's transaction, and its owner commits.
        A known id with another payload is parked in `<source_topic>.dead`: None as well.
        """
        done = await self.process(
            event_id, source_topic, event_type, payload, handler, session=session, cause=cause
        )
        return done.result

    async def process(
        self,
        event_id: str,
        source_topic: str,
        event_type: str,
        payload: Any,
        handler: Handler,
        *,
        session: Any | None = None,
        cause: MessageEnvelope | None = None,
    ) -> InboxResult:
        """Do the same as `process_idempotent`, and tell the outcome."""
        raw = isinstance(payload, bytes)
        message = cause or MessageEnvelope(
            topic=source_topic,
            event_type=event_type,
            event_id=event_id,
            tenant_id=self.tenant_id,
            **({"body": payload, "content_type": BINARY} if raw else {"payload": payload}),
        )
        takes_uow = takes_second(handler)

        async def run(uow: UnitOfWork) -> Any:
            return await call(handler, payload, uow, takes_uow=takes_uow)

        receipt = Receipt(
            tenant_id=self.tenant_id,
            consumer_name=self.consumer_name,
            message_id=check_name("event_id", event_id),
            event_type=check_name("event_type", event_type),
            source=check_name("source_topic", source_topic),
            payload_hash=payload_hash(payload),
            payload=self._document(payload),
            handler=name_of(handler),
        )
        job = Job(receipt=receipt, message=message, run=run)
        return await self._processor.execute(job, session=session)

    async def process_batch(
        self, messages: Sequence[MessageEnvelope], handler: Handler
    ) -> list[InboxResult]:
        """Process many messages with one transaction; the result at i belongs to message i.

        If any of them fails, all is undone and they are processed one by one, so that one bad
        message costs the others time only. *handler* is as in `process_idempotent`.
        """
        takes_uow = takes_second(handler)
        name = name_of(handler)

        def job(message: MessageEnvelope) -> Job:
            async def run(uow: UnitOfWork) -> Any:
                return await call(handler, message.payload, uow, takes_uow=takes_uow)

            return Job(receipt=self._receipt(message, name), message=message, run=run)

        return await self._processor.execute_batch([job(message) for message in messages])

    async def cleanup_old_entries(self, older_than_days: float = 7) -> int:
        """Delete this consumer's records of messages processed before that, in batches."""
        return await self._storage.inbox.cleanup(
            older_than=timedelta(days=older_than_days),
            consumer_name=self.consumer_name,
            tenant_id=self.tenant_id,
        )

    def _receipt(self, message: MessageEnvelope, handler: str) -> Receipt:
        return receipt_of(
            message, self.consumer_name, handler=handler, keep_payload=self._keep_payload
        )

    def _document(self, payload: Any) -> str | None:
        if not self._keep_payload:
            return None
        try:
            return JsonSerializer().dumps(payload).decode()
        except SerializationError:
            return None
