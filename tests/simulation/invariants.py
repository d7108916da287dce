"""What must be true at the end of every run, whatever happened in it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.world import World

_LEGAL = {
    ("NEW", "PUBLISHING"),
    ("NEW", "SENT"),
    ("NEW", "FAILED"),
    ("NEW", "DEAD"),
    ("PUBLISHING", "SENT"),
    ("PUBLISHING", "FAILED"),
    ("PUBLISHING", "DEAD"),
    ("FAILED", "PUBLISHING"),
    ("FAILED", "SENT"),
    ("FAILED", "DEAD"),
    ("DEAD", "NEW"),  # an operator
    ("DEAD", "SENT"),  # the broker had it after all
}


def violations(world: World) -> list[str]:
    """Return a sentence for each promise that was not kept."""
    found: list[str] = []
    for check in (_outbox, _order, _effects, _states, _charges, _requests):
        found += check(world)
    return found


def _ledger(world: World, topic: str | None = None) -> dict[str, str | None]:
    where = "" if topic is None else f" WHERE topic = '{topic}'"
    rows = world.read(f"SELECT event_id, key FROM sim_ledger{where} ORDER BY position")
    return dict(rows)


def _outbox(world: World) -> Iterator[str]:
    """Published if and only if committed."""
    committed = _ledger(world)
    arrived = {event_id for topic, _, event_id in world.broker.log if not topic.endswith(".dead")}
    for event_id in committed:
        if event_id not in arrived:
            yield f"loss: {world.name_of(event_id)} was committed and never published"
    for event_id in arrived - committed.keys():
        yield f"ghost: {world.name_of(event_id)} was published and never committed"


def _order(world: World) -> Iterator[str]:
    """First arrivals of a key are in the order of the commits."""
    rows = world.read("SELECT event_id, topic, key FROM sim_ledger ORDER BY position")
    places = {event_id: number for number, (event_id, _, _) in enumerate(rows)}
    first: dict[str, list[str]] = defaultdict(list)
    for _topic, key, event_id in dict.fromkeys(world.broker.log):
        if key is not None and event_id in places:
            first[key].append(event_id)
    for key, ids in first.items():
        yield from _inversions(world, f"order: at the broker, {key}:", ids, places)
    effects: dict[str, list[str]] = defaultdict(list)
    for event_id, key in world.read("SELECT event_id, key FROM sim_effect ORDER BY position"):
        if key is not None and event_id in places:
            effects[key].append(event_id)
    for key, ids in effects.items():
        yield from _inversions(world, f"order: of effects, {key}:", ids, places)


def _inversions(
    world: World, what: str, ids: Sequence[str], places: dict[str, int]
) -> Iterator[str]:
    for one, two in pairwise(ids):
        if places[one] > places[two]:
            yield f"{what} {world.name_of(one)} before {world.name_of(two)}"


def _effects(world: World) -> Iterator[str]:
    """Each message has its effect once, or is DEAD for a reason of its own."""
    effects = Counter(row[0] for row in world.read("SELECT event_id FROM sim_effect"))
    inbox = dict(world.read("SELECT message_id, status FROM inbox"))
    for event_id in _ledger(world, "orders"):
        name, number = world.name_of(event_id), effects.pop(event_id, 0)
        if number > 1:
            yield f"effect: {name} took effect {number} times"
        elif world.stubborn.get(event_id):
            if number or inbox.get(event_id) != "DEAD":
                yield f"effect: {name} always fails, and is {inbox.get(event_id)}"
        elif number != 1:
            yield f"effect: {name} had none, and is {inbox.get(event_id)}"
    for event_id in effects:
        yield f"effect: of {world.name_of(event_id)}, which was never committed"
    # A copy that comes after the end of its message runs again, like one that was sent on purpose.
    letters = set(world.broker.letters)
    for event_id in letters ^ {name for name, status in inbox.items() if status == "DEAD"}:
        yield f"dead letter: {world.name_of(event_id)} is DEAD or has a letter, and not both"


def _states(world: World) -> Iterator[str]:
    """Only legal transitions; FAILED and DEAD are written by the owner of the lease."""
    sql = "SELECT event_id, before, after, writer, owner FROM sim_audit ORDER BY position"
    for event_id, before, after, writer, owner in world.read(sql):
        name = world.name_of(event_id)
        if after == "GONE":
            if world.plan.config.keep_sent:
                yield f"state: {name} was deleted"
        elif before != after and (before, after) not in _LEGAL:
            yield f"state: {name} went from {before} to {after}"
        if after in ("FAILED", "DEAD"):
            holder = world.instances.get(owner)
            if holder != writer:
                yield f"fencing: {writer} wrote {after} to {name}, the lease is {holder}'s"


def _charges(world: World) -> Iterator[str]:
    """An outage counts against nobody: an attempt needs an answer, or a process that died of it."""
    sql = "SELECT event_id, after, attempts_before, attempts FROM sim_audit ORDER BY position"
    begun: Counter[str] = Counter()
    for event_id, after, before, attempts in world.read(sql):
        if after == "PUBLISHING":
            begun[event_id] += attempts > before
        elif after in ("FAILED", "DEAD"):
            blamed = world.broker.blame[event_id] + begun[event_id]
            if attempts > blamed:
                name = world.name_of(event_id)
                yield f"charges: attempt {attempts} of {name}, which had {blamed} answers"


def _requests(world: World) -> Iterator[str]:
    """One execution per key, and the same answer for everybody."""
    executions = Counter(row[0] for row in world.read("SELECT request FROM sim_execution"))
    for request in world.requests:
        number = executions[request.name]
        if request.kind == "abandoned" and number:
            yield f"idempotency: {request.name} was rolled back, and is there"
        if number > 1:
            yield f"idempotency: {request.name} was executed {number} times"
        if request.kind != "idempotent":
            continue
        if request.done and not number:
            yield f"idempotency: {request.name} was answered and never executed"
        if any(answer != request.answers[0] for answer in request.answers):
            yield f"idempotency: {request.name} has several answers: {request.answers}"
        if request.done and not request.mismatched:
            yield f"idempotency: {request.name} took another request for the same"
