"""Named moments at which a test may end the process; nothing happens there otherwise.

Only code inside the process can switch them on. An environment variable could reach a service in
production, and would have to be read there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from semel.errors import ConfigurationError

#: Every failpoint, and what has happened when it is passed.
FAILPOINTS: Mapping[str, str] = MappingProxyType(
    {
        "write.before_insert": "a transaction is about to end, its events are in memory",
        "write.after_insert": "its events are in the table, nothing is durable",
        "write.after_commit": "everything is durable, nobody was told",
        "wakeup.before_send": "projectors, or members of the bus, are about to be woken",
        "relay.after_renewal": "a projector is registered and its leases are renewed",
        "relay.after_claim": "partitions are leased, nothing was read",
        "relay.before_release": "surplus partitions are about to be given back",
        "relay.after_release": "they are free, and still in memory",
        "relay.after_unpark": "parked rows are hot again, nothing was read",
        "relay.after_promote": "scheduled rows that are due are hot",
        "relay.after_fetch": "rows were read, none is in the window",
        "relay.after_floor": "the floors are above what is done",
        "relay.after_park": "rows are parked, and still in the window",
        "relay.after_begin": "attempts are marked in the table",
        "relay.before_publish": "a batch is about to be given to the broker",
        "relay.after_publish": "the broker has answered, nobody has looked at the answers",
        "relay.before_acknowledge": "confirmed events are about to be marked",
        "relay.after_acknowledge": "they are SENT, and still in the window",
        "relay.before_failure": "the broker rejected events, nothing of it is written",
        "relay.after_failure": "they are FAILED or DEAD, their keys have not gone on",
        "relay.before_retire": "a projector has stopped, its leases are in the table",
        "relay.after_retire": "it has given everything back",
        "bus.after_topic": "the logs of a new topic are there",
        "bus.before_append": "messages are in their logs, nothing is durable",
        "bus.after_append": "messages are durable, the publisher does not know",
        "bus.after_join": "a group is known",
        "bus.after_renewal": "a member is registered and its leases are renewed",
        "bus.after_claim": "logs are leased, nothing was read",
        "bus.after_fetch": "messages were read, nothing is marked as delivered",
        "bus.before_positions": "positions are about to be stored",
        "bus.after_positions": "they are stored",
        "bus.after_release": "logs were given back, and are still in memory",
        "inbox.after_admission": "the inbox row is inserted, the handler has not begun",
        "inbox.after_handler": "the handler has returned, the inbox row is not complete",
        "inbox.before_commit": "everything is written, nothing is durable",
        "inbox.after_commit": "the effect is durable, the broker does not know",
        "batch.after_admission": "the inbox rows of a batch are inserted",
        "batch.before_commit": "all handlers of a batch have returned, nothing is durable",
        "batch.after_commit": "the effects of a batch are durable",
        "consumer.after_count": "an attempt of a redelivered message is counted",
        "consumer.before_burial": "a dead letter is written, nothing is durable",
        "consumer.after_burial": "the message is DEAD or PARKED, the broker does not know",
        "consumer.before_ack": "a message is about to be acknowledged",
        "consumer.after_ack": "it is acknowledged",
        "idempotency.after_claim": "a key is claimed, or the answer of its call was read",
        "idempotency.after_takeover": "the key of a call that died is ours",
        "idempotency.after_function": "the function has returned, its result is in memory",
        "idempotency.before_commit": "result and effect are written, nothing is durable",
        "idempotency.after_commit": "they are durable, the caller does not know",
        "idempotency.after_result": "the result of a function without a transaction is durable",
        "idempotency.after_renewal": "the lease of a key was renewed",
        "idempotency.after_release": "the key of a call that failed is free",
        "request.after_seal": "the handler has committed, nothing is durable",
        "request.before_answer": "the answer is known, nothing of it is written",
        "request.after_answer": "effect and answer are written, nothing is durable",
        "request.after_commit": "they are durable, no byte was sent",
        "request.after_first_byte": "the client has the status, and no body",
        "operator.before_commit": "a repair or a clean-up has changed rows, nothing is durable",
        "operator.after_commit": "a batch of it is durable",
        "cleanup.after_keys": "a batch of expired idempotency keys is gone",
        "cleanup.after_messages": "a batch of old messages of the bus is gone",
    }
)

_hook: Callable[[str], None] | None = None


def failpoint(name: str) -> None:
    """Pass the failpoint *name*; each is in the code once."""
    if _hook is not None:
        _hook(name)


@contextmanager
def switched_on(hook: Callable[[str], None], *names: str) -> Iterator[None]:
    """While inside, call *hook* with the name of each failpoint that is passed.

    Of *names* only, if there are any; `ConfigurationError` for one that does not exist.
    """
    global _hook  # noqa: PLW0603  one per process, as its death is
    if unknown := set(names) - FAILPOINTS.keys():
        raise ConfigurationError(f"there is no failpoint {', '.join(sorted(unknown))}")
    chosen = frozenset(names or FAILPOINTS)
    _hook = lambda name: hook(name) if name in chosen else None  # noqa: E731
    try:
        yield
    finally:
        _hook = None
