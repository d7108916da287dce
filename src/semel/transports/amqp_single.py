"""Publishing to RabbitMQ message by message, where batches are not possible."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from aiormq.abc import AbstractChannel, AbstractConnection
from aiormq.exceptions import DeliveryError, PublishError as ReturnedError

from semel.errors import PublishError, PublishErrorKind, describe
from semel.transports.amqp_frames import Outgoing
from semel.transports.rabbitmq_errors import TROUBLE, failure

Results = list[PublishError | None]

_CHUNK = 500


async def is_blocked(connection: AbstractConnection) -> bool:
    """Tell whether the broker has announced that it does not read what is published."""
    try:
        async with asyncio.timeout(0):
            await connection.ready()
    except TimeoutError:
        return True
    return False


class SingleChannel:
    """The same with the documented API only, which is several times slower."""

    too_large: int | None = None
    is_stuck = False
    is_idle = True

    def __init__(
        self,
        channel: AbstractChannel,
        *,
        confirm_seconds: float,
        unroutable: PublishErrorKind | None,
    ) -> None:
        self._channel = channel
        self._confirm_seconds = confirm_seconds
        self._unroutable = unroutable

    @property
    def is_open(self) -> bool:
        """Whether it can still publish."""
        return not self._channel.is_closed

    async def close(self) -> None:
        """Close the channel."""
        with suppress(*TROUBLE):
            await self._channel.close()

    async def publish(self, messages: Sequence[Outgoing]) -> Results:
        """Write *messages* in order and wait for the confirms; the result at i is for message i."""
        results: Results = []
        for start in range(0, len(messages), _CHUNK):
            if await is_blocked(self._channel.connection):
                return results + [failure("blocked")] * (len(messages) - start)
            tasks = [self._publish(message) for message in messages[start : start + _CHUNK]]
            results += await asyncio.gather(*tasks)
        return results

    async def _publish(self, message: Outgoing) -> PublishError | None:
        channel: Any = self._channel  # its abstract class does not know `wait`
        try:
            await channel.basic_publish(
                message.body,
                exchange=message.exchange,
                routing_key=message.routing_key,
                properties=message.properties(),
                mandatory=self._unroutable is not None,
                wait=False,
                timeout=self._confirm_seconds,
            )
        except ReturnedError as error:
            return failure("unroutable", describe(error), kind=self._unroutable)
        except DeliveryError:
            return failure("nacked")
        except TimeoutError:
            return failure("not confirmed")
        except TROUBLE as error:
            return failure("connection lost", describe(error))
        return None
