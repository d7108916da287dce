"""The machines by name."""

from __future__ import annotations

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.properties.idempotency import IdempotencyMachine
from tests.properties.inbox import InboxMachine
from tests.properties.outbox import OutboxMachine
from tests.properties.world import World

MACHINES = {
    "outbox": OutboxMachine,
    "inbox": InboxMachine,
    "idempotency": IdempotencyMachine,
}


def attack(name: str, world: World, how_much: settings) -> None:
    """Try sequences of calls until one of them breaks the model, or *how_much* is reached."""
    machine = MACHINES[name]
    run_state_machine_as_test(lambda: machine(world), settings=how_much)
