"""A hub's topics, handlers and types of events, as AsyncAPI describes them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from semel.asyncapi.schemas import Schemas

if TYPE_CHECKING:
    from semel.binding import Binding
    from semel.consumer import EventConsumer
    from semel.hub import Hub

_VERSION = "3.0.0"
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")
_JSON = "application/json"
#: The CloudEvents attributes that a message carries in its headers; a broker may prefix them.
_HEADERS = {
    "type": "object",
    "properties": {
        "ce_specversion": {"type": "string", "const": "1.0"},
        "ce_id": {"type": "string", "description": "The event's id: what consumers deduplicate by"},
        "ce_source": {"type": "string", "description": "The service that sent it"},
        "ce_type": {"type": "string", "description": "The type of event"},
        "ce_time": {"type": "string", "format": "date-time"},
        "ce_subject": {"type": "string", "description": "The aggregate's id"},
        "ce_partitionkey": {"type": "string", "description": "What stays in order"},
        "message_id": {"type": "string", "description": "The event's id again"},
        "traceparent": {"type": "string", "description": "W3C trace context"},
    },
    "required": ["ce_specversion", "ce_id", "ce_source", "ce_type"],
}


def describe_hub(hub: Hub, *, version: str = "0.0.0", title: str | None = None) -> dict[str, Any]:
    """Return the AsyncAPI 3 document of *hub*: what it receives, and where it sends to.

    A payload's schema is that of the type which the handler's first parameter is annotated with.
    Sending is known by topic only: dead letters, and topics that the projector has a policy for.
    *version* is the service's own.
    """
    schemas, names = Schemas(), _Names()
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    messages: dict[str, Any] = {}
    for consumer in hub.consumers.values():
        channel = _channel(channels, names[consumer.topic], consumer.topic)
        listed = channels[channel].setdefault("messages", {})
        for event_type, bindings in consumer.handlers.items():
            name = names[f"{consumer.topic}.{event_type}"]
            messages[name] = _message(event_type, bindings, schemas)
            listed[names[event_type]] = {"$ref": f"#/components/messages/{name}"}
        operations[f"receive.{channel}"] = _receive(consumer, channel, listed)
    sent = {consumer.dead_letter_topic: "Dead letters" for consumer in hub.consumers.values()}
    sent |= dict.fromkeys(hub.config.topics, "Events of this service")
    for topic, summary in sorted(sent.items()):
        channel = _channel(channels, names[topic], topic)
        operations[f"send.{channel}"] = {
            "action": "send",
            "channel": {"$ref": f"#/channels/{channel}"},
            "summary": summary,
        }
    components = {
        "messageTraits": {"cloudevents": {"headers": {**_HEADERS}}},
        "messages": messages,
        "schemas": schemas.components,
    }
    return {
        "asyncapi": _VERSION,
        "info": {"title": title or hub.name, "version": version},
        "defaultContentType": _JSON,
        "channels": channels,
        "operations": operations,
        "components": {name: value for name, value in components.items() if value},
    }


def _channel(channels: dict[str, Any], name: str, topic: str) -> str:
    channels.setdefault(name, {"address": topic})
    return name


def _message(event_type: str, bindings: Sequence[Binding], schemas: Schemas) -> dict[str, Any]:
    payloads = [schemas.of(binding.annotation) for binding in bindings]
    known: list[dict[str, Any]] = []
    for schema in payloads:
        if schema and schema not in known:
            known.append(schema)
    message: dict[str, Any] = {
        "name": event_type,
        "title": event_type,
        "contentType": _JSON,
        "traits": [{"$ref": "#/components/messageTraits/cloudevents"}],
    }
    if known:
        # Every handler of a type must be able to read it.
        message["payload"] = known[0] if len(known) == 1 else {"allOf": known}
    return message


def _receive(consumer: EventConsumer, channel: str, listed: Mapping[str, Any]) -> dict[str, Any]:
    handlers = sorted(
        {binding.name for bindings in consumer.handlers.values() for binding in bindings}
    )
    operation: dict[str, Any] = {
        "action": "receive",
        "channel": {"$ref": f"#/channels/{channel}"},
        "summary": f"Consumer {consumer.name}, group {consumer.group_id}",
    }
    if handlers:
        operation["description"] = "Handlers: " + ", ".join(handlers)
    if listed:
        operation["messages"] = [
            {"$ref": f"#/channels/{channel}/messages/{name}"} for name in listed
        ]
    return operation


class _Names(dict[str, str]):
    """Names as identifiers; two names never become the same one."""

    def __missing__(self, text: str) -> str:
        name = _UNSAFE.sub("_", text)
        while name in self.values():
            name += "_"
        self[text] = name
        return name
