"""From a delivery to its handlers, or to the reason why there are none."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from semel.binding import Binding, Handler, bind
from semel.dead_letters import Reason
from semel.dispatch import Item, Verdict
from semel.envelope import MessageEnvelope, check_name
from semel.errors import WireError, describe
from semel.hashing import is_json
from semel.protocols import Delivery, UnitOfWork
from semel.serializers import Serializers
from semel.states import InboxStatus
from semel.wire import decode

_logger = logging.getLogger("semel.consumer")
_MAX_WARNED = 1000


@dataclass(slots=True, kw_only=True)
class Router:
    """The handlers of one consumer, and what it accepts."""

    name: str
    ignore_unknown: bool
    tenants: Collection[str] | None
    takes_all: bool
    serializers: Serializers = field(default_factory=Serializers)
    _bindings: dict[str, list[Binding]] = field(default_factory=dict, init=False)
    _warned: set[str] = field(default_factory=set, init=False)

    def __bool__(self) -> bool:
        return self.takes_all or bool(self._bindings)

    @property
    def bindings(self) -> Mapping[str, Sequence[Binding]]:
        """What is registered, by type of event."""
        return self._bindings

    def add(self, event_type: str, handler: Handler) -> None:
        """Register *handler*, behind those that are registered already."""
        check_name("event_type", event_type)
        self._bindings.setdefault(event_type, []).append(bind(handler))

    async def run(self, message: MessageEnvelope, uow: UnitOfWork) -> None:
        """Run all handlers of the message's type, in the order of their registration."""
        for binding in self._bindings.get(message.event_type, ()):
            await binding(message, uow)

    def handler_name(self, event_type: str) -> str | None:
        """Return the names of the handlers for the inbox record."""
        names = [binding.name for binding in self._bindings.get(event_type, ())]
        return ", ".join(names)[:255] or None

    def judge(self, delivery: Delivery) -> Item:
        """Decode, and decide what can be decided without running anything."""
        try:
            message = self.serializers.attach(decode(delivery.wire))
        except Exception as error:  # noqa: BLE001  whatever it is, it must not stop the others
            verdict = _parked(Reason.UNDECODABLE, describe(error))
            return Item(delivery=delivery, message=None, verdict=verdict)
        item = Item(delivery=delivery, message=message)
        if self.tenants is not None and message.tenant_id not in self.tenants:
            item.verdict = _parked(Reason.FOREIGN_TENANT, "not a tenant of this consumer")
        elif not self.takes_all and message.event_type not in self._bindings:
            self._warn(message.event_type)
            item.ignored = self.ignore_unknown
            if not item.ignored:
                item.verdict = _parked(Reason.UNKNOWN_TYPE, "no handler for this event type")
        elif is_json(message.content_type) or self.serializers.reads(message.content_type):
            try:
                message.payload  # noqa: B018  decoded here, once, or not at all
            except Exception as error:  # noqa: BLE001  the same
                item.verdict = _parked(Reason.UNDECODABLE, describe(error))
        return item

    async def prepare(self, delivery: Delivery) -> None:
        """Fetch what decoding needs, such as a schema; raises if it cannot be had now."""
        try:
            message = decode(delivery.wire)
        except WireError:
            return  # `judge` says so
        await self.serializers.prepare(message)

    def _warn(self, event_type: str) -> None:
        if event_type not in self._warned and len(self._warned) < _MAX_WARNED:
            self._warned.add(event_type)
            _logger.warning(
                "%s has no handler for event type %r: its messages are %s",
                self.name,
                event_type,
                "ignored" if self.ignore_unknown else "parked as dead letters",
                extra={"consumer": self.name, "event_type": event_type},
            )


def _parked(reason: Reason, detail: str) -> Verdict:
    return Verdict(status=InboxStatus.PARKED, reason=reason, detail=detail)
