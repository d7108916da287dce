"""Brokers behind the `MessageBus` protocol, one module each.

A module is imported when it is needed, because its client is an optional dependency.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from semel.errors import ConfigurationError, missing_extra

if TYPE_CHECKING:
    from semel.protocols import MessageBus

__all__ = ["bus_from_url"]


class _Transport(NamedTuple):
    module: str
    name: str
    extra: str | None


_RABBITMQ = _Transport("rabbitmq", "RabbitMQMessageBus", "rabbitmq")
_PULSAR = _Transport("pulsar", "PulsarMessageBus", "pulsar")
_NATS = _Transport("nats", "NatsMessageBus", "nats")
_REDIS = _Transport("redis", "RedisMessageBus", "redis")

_TRANSPORTS = {
    "memory": _Transport("memory", "InMemoryMessageBus", None),
    "database": _Transport("database", "DatabaseMessageBus", None),
    "kafka": _Transport("kafka", "KafkaMessageBus", "kafka"),
    "amqp": _RABBITMQ,
    "amqps": _RABBITMQ,
    "pulsar": _PULSAR,
    "pulsar+ssl": _PULSAR,
    "nats": _NATS,
    "tls": _NATS,
    "redis": _REDIS,
    "rediss": _REDIS,
}


def bus_from_url(url: str, **options: Any) -> MessageBus:
    """Return the bus for *url*, such as `kafka://localhost:9092`; *options* go to its class.

    `database://` needs `storage=...`; `database+<SQLAlchemy URL>` makes a storage of its own.
    Raises `ConfigurationError` for an unknown scheme or a client that is not installed.
    """
    if not isinstance(url, str):
        raise ConfigurationError(f"a bus URL is a str, not {type(url).__name__}")
    scheme, separator, _ = url.partition("://")
    # database+postgresql+asyncpg://... names a database by its SQLAlchemy URL.
    database = scheme.lower().startswith("database+")
    transport = _TRANSPORTS.get("database" if database else scheme.lower())
    if not separator or transport is None:
        # Without a scheme it may be anything, a password included: not repeated.
        problem = f"no transport for {scheme + '://'!r}" if separator else "a bus URL has no scheme"
        known = ", ".join(f"{name}://" for name in _TRANSPORTS)
        raise ConfigurationError(f"{problem}: choose one of {known}")
    try:
        bus = getattr(import_module(f"{__name__}.{transport.module}"), transport.name)
    except ImportError as error:
        if transport.extra is None:
            raise ConfigurationError(f"this semel has no transport for {scheme}://") from error
        raise ConfigurationError(missing_extra(f"{scheme}://", transport.extra)) from error
    result: MessageBus = bus(**options) if scheme.lower() == "memory" else bus(url, **options)
    return result
