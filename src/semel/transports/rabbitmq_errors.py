"""What goes wrong with RabbitMQ, and which kind of trouble that is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from aiormq.exceptions import (
    AMQPError,
    ChannelAccessRefused,
    ChannelInvalidStateError,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
)

from semel.errors import (
    BusError,
    ConfigurationError,
    PublishError,
    PublishErrorKind,
    SemelError,
    describe,
)

# docs/transports/rabbitmq.md shows these rows.
ERRORS: dict[str, tuple[PublishErrorKind, str]] = {
    "unroutable": ("destination", "no queue is bound for the exchange and routing key"),
    "nacked": ("transient", "the broker refused the message, such as for a full queue"),
    "too large": ("permanent", "the message is larger than the broker or the bus allows"),
    "not encodable": ("permanent", "the message cannot be written as AMQP"),
    "no exchange": ("destination", "the exchange does not exist or has another type"),
    "access refused": ("destination", "the user has no permission for the exchange"),
    "no connection": ("destination", "the broker cannot be reached, or refuses the login"),
    "blocked": ("destination", "the broker is short of memory or disk and takes no messages"),
    "blocked in flight": ("unknown", "the broker ran short of memory or disk before it confirmed"),
    "connection lost": ("unknown", "the connection was lost before the confirm arrived"),
    "channel closed": ("unknown", "the broker closed the channel before it confirmed"),
    "not confirmed": ("unknown", "no confirm arrived in time"),
}
_BY_CODE = {403: "access refused", 404: "no exchange"}

# What aiormq raises when it cannot do what was asked.
TROUBLE = (AMQPError, ChannelInvalidStateError, OSError, RuntimeError, TimeoutError)

_T = TypeVar("_T")


async def calling(call: Awaitable[_T]) -> _T:
    """Await a call of aiormq, which pretends to be cancelled when its connection is closed."""
    try:
        return await call
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise ConnectionError("the connection was closed") from None


def failure(name: str, detail: str = "", *, kind: PublishErrorKind | None = None) -> PublishError:
    """Return the error of a row of `ERRORS`."""
    default, text = ERRORS[name]
    return PublishError(f"{text} ({detail})" if detail else text, kind=kind or default)


def closed_by_broker(code: int, text: str) -> PublishError:
    """Return the error of the messages that waited when the broker closed their channel."""
    return failure(_BY_CODE.get(code, "channel closed"), describe(_Reply(f"{code} {text}")))


def exchange_trouble(error: BaseException) -> PublishError:
    """Return why the messages for an exchange cannot be sent."""
    if isinstance(error, ChannelAccessRefused):
        return failure("access refused", describe(error))
    if isinstance(error, ChannelNotFoundEntity | ChannelPreconditionFailed):
        return failure("no exchange", describe(error))
    return failure("no connection", describe(error))


def bus_error(error: BaseException, doing: str) -> SemelError:
    """Return what to raise when the broker does not do what was asked."""
    if isinstance(error, ChannelPreconditionFailed):
        return ConfigurationError(
            f"{doing}: it exists with other settings; give the bus the same ones, or "
            f"declare=False to use it as it is ({describe(error)})"
        )
    return BusError(f"{doing}: {describe(error)}")


class _Reply(Exception):  # noqa: N818  never raised: `describe` cleans its text
    pass
