"""Aggregates that remember the events they caused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from semel.envelope import MessageEnvelope, new_event_id
from semel.errors import ConfigurationError

#: In `Session.info`: entities that got events after they were deleted.
DELETED = "semel.deleted"
_PENDING = "_pending_events"


@runtime_checkable
class HasEvents(Protocol):
    """Anything whose pending events a unit of work can collect."""

    @property
    def pending_events(self) -> Sequence[PendingEvent]:
        """Events that no transaction has committed yet, in order."""

    def discard_events(self, events: Sequence[PendingEvent]) -> None:
        """Forget *events*: they are committed."""


@dataclass(frozen=True, slots=True)
class PendingEvent:
    """An event with the id that it keeps however often its transaction is retried."""

    event: Any
    event_id: str
    options: dict[str, Any]


class AggregateRoot:
    """Mix-in that collects domain events.

    An event is a dataclass, a pydantic model, a msgspec struct or a `MessageEnvelope`.
    Its topic is `add_event(..., topic=)`, else the event's or the aggregate's `topic` attribute;
    its type is the event's `event_type` attribute or class name; its aggregate is this object.
    """

    @property
    def pending_events(self) -> Sequence[PendingEvent]:
        """Events that no transaction has committed yet, in order."""
        return tuple(self.__dict__.get(_PENDING, ()))

    def add_event(
        self,
        event: Any,
        *,
        topic: str | None = None,
        key: str | None = None,
        event_type: str | None = None,
        routing_key: str | None = None,
        metadata: dict[str, str] | None = None,
    ) -> None:
        """Remember *event*; it is written to the outbox by the transaction that saves this."""
        given = {
            "topic": topic,
            "key": key,
            "event_type": event_type,
            "routing_key": routing_key,
            "metadata": metadata,
        }
        options = {name: value for name, value in given.items() if value is not None}
        # An ORM entity was not built by __init__ when it was loaded.
        pending = self.__dict__.setdefault(_PENDING, [])
        own = event.event_id if isinstance(event, MessageEnvelope) else new_event_id()
        pending.append(PendingEvent(event, own, options))
        if "_sa_instance_state" in self.__dict__:
            _keep_alive(self)

    def discard_events(self, events: Sequence[PendingEvent]) -> None:
        """Forget *events*: they are committed."""
        pending = self.__dict__.get(_PENDING)
        if pending:
            done = {item.event_id for item in events}
            pending[:] = [item for item in pending if item.event_id not in done]


def to_envelope(
    aggregate: object,
    pending: PendingEvent,
    *,
    tenant_id: str,
    headers: Callable[..., dict[str, str]],
) -> MessageEnvelope:
    """Make the message of one of *aggregate*'s events.

    *headers* returns its metadata from its own, its `topic` and `event_id`; it is called once
    the message is sure to be made.
    """
    event = pending.event
    if isinstance(event, MessageEnvelope):
        return event
    options = dict(pending.options)
    topic = (
        options.pop("topic", None)
        or getattr(event, "topic", None)
        or getattr(aggregate, "topic", None)
    )
    if not isinstance(topic, str):
        raise ConfigurationError(
            f"{type(event).__name__} has no topic: pass add_event(..., topic=...), or give "
            f"{type(event).__name__} or {type(aggregate).__name__} a `topic` attribute"
        )
    aggregate_id = getattr(aggregate, "aggregate_id", None)
    if aggregate_id is None:
        aggregate_id = getattr(aggregate, "id", None)
    if aggregate_id is None:
        raise ConfigurationError(
            f"{type(aggregate).__name__} has no `id` yet: give it one before commit, "
            "or flush the session first"
        )
    own = options.pop("metadata", None)
    options["metadata"] = headers(own, topic=topic, event_id=pending.event_id)
    event_type = options.pop("event_type", None) or getattr(event, "event_type", None)
    return MessageEnvelope(
        topic=topic,
        payload=event,
        event_type=event_type or type(event).__name__,
        event_id=pending.event_id,
        tenant_id=tenant_id,
        aggregate_id=str(aggregate_id),
        aggregate_type=getattr(aggregate, "aggregate_type", None) or type(aggregate).__name__,
        **options,
    )


def _keep_alive(entity: object) -> None:
    """Let the entity's session know of it.

    A session holds unchanged entities weakly: unless it is marked as dirty, an entity that nobody
    else refers to would be garbage-collected before the commit, with its events. One whose
    deletion is flushed is in no collection of the session any more.
    """
    from sqlalchemy import inspect  # noqa: PLC0415  leaf: only for entities
    from sqlalchemy.orm.attributes import flag_dirty  # noqa: PLC0415

    state: Any = inspect(entity)
    if state.deleted:
        state.session.info.setdefault(DELETED, []).append(entity)
    else:
        flag_dirty(entity)
