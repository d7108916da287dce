"""The checker passes a clean run, and names each invariant that a doctored one violates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.checker import INVARIANTS, check, main
from tests.chaos.folders import Folder, clean_folder, effect

FIRST, SECOND = "north-k1-1", "north-k1-2"


def named(violations: list[str]) -> set[str]:
    return {text.partition(":")[0] for text in violations}


def tried(run: Folder, *steps: tuple[int, str]) -> None:
    """Append the life of a row: attempts and status."""
    old = None
    for attempts, new in [(0, "NEW"), *steps]:
        row = {"id": SECOND, "from": old, "to": new, "attempts": attempts, "epoch": 1}
        run.state["transitions"].append(row)
        old = new


def lost(run: Folder) -> None:
    run.drop("effects", "north-k1-3")


def lost_in_one_group(run: Folder) -> None:
    run.state["effects"].remove(run.find("effects", "south-k2-3", group="audit"))


def lost_group(run: Folder) -> None:
    run.state["config"]["groups"].append("nobody")


def stuck(run: Folder) -> None:
    run.find("outbox", "north-k1-3")["status"] = "PUBLISHING"
    run.drop("effects", "north-k1-3")


def dead_for_no_reason(run: Folder) -> None:
    run.find("outbox", "north-big-1")["reason"] = None


def parked_for_no_reason(run: Folder) -> None:
    run.find("parked", "south-odd-1")["reason"] = ""


def ghost_effect(run: Folder) -> None:
    ghost = run.find("ledger", FIRST) | {"id": "rolled-back", "version": 9}
    run.state["effects"].append(effect(ghost, "books", 900))


def ghost_row(run: Folder) -> None:
    run.state["outbox"].append(run.find("outbox", FIRST) | {"id": "rolled-back"})


def ghost_on_the_wire(run: Folder) -> None:
    run.state["wire"]["rolled-back"] = 1


def ghost_delivery(run: Folder) -> None:
    line = {"t": 1.0, "proc": "consumer-1#1", "type": "invoke", "f": "deliver", "key": "k1"}
    run.history.append(line | {"value": {"group": "books", "id": "rolled-back", "version": 9}})


def double_effect(run: Folder) -> None:
    run.state["effects"].append(run.find("effects", FIRST) | {"seq": 900})


def money_made(run: Folder) -> None:
    run.state["balances"]["alice"] += 1


def swapped(run: Folder) -> None:
    one, two = (run.find("effects", name, group="books") for name in (FIRST, SECOND))
    one["seq"], two["seq"] = two["seq"], one["seq"]


def published_swapped(run: Folder) -> None:
    for line in run.history:
        ids = line["value"]["ids"]
        line["value"]["ids"] = [{FIRST: SECOND, SECOND: FIRST}.get(name, name) for name in ids]


def dead_overtaken(run: Folder) -> None:
    run.find("outbox", SECOND).update(status="DEAD", reason="refused")
    run.drop("effects", SECOND)


def other_bytes(run: Folder) -> None:
    run.find("effects", FIRST)["sha256"] = "another"


def sent_then_failed(run: Folder) -> None:
    row = {"id": SECOND, "from": "SENT", "to": "FAILED", "attempts": 1, "epoch": 1}
    run.state["transitions"].append(row)


def attempts_fall(run: Folder) -> None:
    run.state["transitions"][3]["attempts"] = 0


def refund_of_nothing(run: Folder) -> None:
    """An attempt that was not counted beforehand is given back."""
    tried(run, (0, "PUBLISHING"), (1, "FAILED"), (1, "PUBLISHING"), (0, "FAILED"), (0, "SENT"))


def lease_left(run: Folder) -> None:
    run.state["leases_live"] = 1


def claim_left(run: Folder) -> None:
    run.state["claims_in_flight"] = 3


def stale_failure(run: Folder) -> None:
    run.state["transitions"][1]["epoch"] = 2


def told_stale(run: Folder) -> None:
    run.state["transitions"][2]["stale"] = True


def executed_twice(run: Folder) -> None:
    run.state["idempotency"][0]["executions"] = 2


def never_executed(run: Folder) -> None:
    run.state["idempotency"][0]["executions"] = 0


def two_answers(run: Folder) -> None:
    run.state["idempotency"][0]["answers"].append([200, "dd"])


def conflict_executed(run: Folder) -> None:
    run.state["idempotency"][0]["conflicts_executed"] = 1


def other_tenant(run: Folder) -> None:
    run.state["effects"].append(run.find("effects", FIRST) | {"tenant": "south", "seq": 900})


def too_late(run: Folder) -> None:
    run.state["quiescent_after"] = 31.0


def never_at_rest(run: Folder) -> None:
    run.state["quiescent_after"] = None


def too_many_duplicates(run: Folder) -> None:
    run.state["wire"][SECOND] = 21


def files_left_open(run: Folder) -> None:
    run.state["resources"]["relay-1"]["fds"] = [20, 90]


def memory_grown(run: Folder) -> None:
    run.state["resources"]["relay-1"]["rss"] = [2**26, 2**29]


DOCTORED: dict[str, list[Callable[[Folder], None]]] = {
    "No loss": [
        lost,
        lost_in_one_group,
        lost_group,
        stuck,
        dead_for_no_reason,
        parked_for_no_reason,
    ],
    "No ghost": [ghost_effect, ghost_row, ghost_on_the_wire, ghost_delivery],
    "Effects exactly once": [double_effect, money_made],
    "Order": [swapped, published_swapped, dead_overtaken],
    "Integrity": [other_bytes],
    "State machine": [
        sent_then_failed,
        attempts_fall,
        refund_of_nothing,
        lease_left,
        claim_left,
    ],
    "Fencing": [stale_failure, told_stale],
    "Idempotency": [executed_twice, never_executed, two_answers, conflict_executed],
    "Isolation": [other_tenant],
    "Liveness": [too_late, never_at_rest],
    "Bounded duplicates": [too_many_duplicates],
    "No leak": [files_left_open, memory_grown],
}


def test_every_invariant_is_doctored() -> None:
    assert set(INVARIANTS) == set(DOCTORED)
    assert 12 == len(INVARIANTS)


def test_clean_run_passes(tmp_path: Path) -> None:
    report = check(clean_folder().write(tmp_path))

    assert [] == report.violations
    assert 0 == main([str(tmp_path)])


@pytest.mark.parametrize(
    ("invariant", "doctor"),
    [
        pytest.param(name, doctor, id=doctor.__name__)
        for name, doctors in DOCTORED.items()
        for doctor in doctors
    ],
)
def test_doctored_run_fails(
    invariant: str, doctor: Callable[[Folder], None], tmp_path: Path
) -> None:
    run = clean_folder()
    doctor(run)
    run.write(tmp_path)

    assert {invariant} == named(check(tmp_path).violations)
    assert 1 == main([str(tmp_path)])


def held(run: Folder) -> None:
    """The last of a key waits behind a DEAD one."""
    run.find("outbox", SECOND).update(status="DEAD", reason="refused")
    run.find("outbox", "north-k1-3")["status"] = "NEW"
    for name in (SECOND, "north-k1-3"):
        run.drop("effects", name)


def skipped(run: Folder) -> None:
    run.state["config"]["on_dead"] = "skip"
    dead_overtaken(run)


def requeued(run: Folder) -> None:
    """An operator sent the first of a key again, after the second."""
    run.history.append({"t": 9.0, "proc": "ops", "type": "ok", "f": "requeue", "key": FIRST})
    swapped(run)


def unordered_bus(run: Folder) -> None:
    run.state["config"]["ordered"] = False
    swapped(run)


def for_one_group_only(run: Folder) -> None:
    run.find("ledger", FIRST)["groups"] = ["books"]
    run.state["effects"].remove(run.find("effects", FIRST, group="audit"))


def refunded(run: Folder) -> None:
    """Tried alone, the attempt counted beforehand, and given back: the broker was away."""
    tried(run, (0, "PUBLISHING"), (1, "PUBLISHING"), (0, "FAILED"), (0, "PUBLISHING"), (0, "SENT"))


def cleaned_up(run: Folder) -> None:
    """The row is gone, and so is a dead letter that was on the wire."""
    run.drop("outbox", FIRST)
    letter: dict[str, Any] = {"id": "letter", "attempts": 0, "epoch": None}
    run.state["transitions"] += [
        letter | {"from": None, "to": "NEW"},
        letter | {"from": "NEW", "to": "SENT"},
        letter | {"from": "SENT", "to": None},
    ]
    run.state["wire"]["letter"] = 1


@pytest.mark.parametrize(
    "allowed", [held, skipped, requeued, unordered_bus, for_one_group_only, refunded, cleaned_up]
)
def test_what_is_promised_is_no_violation(
    allowed: Callable[[Folder], None], tmp_path: Path
) -> None:
    run = clean_folder()
    allowed(run)

    assert [] == check(run.write(tmp_path)).violations


def test_violation_tells_the_story(tmp_path: Path) -> None:
    run = clean_folder()
    lost(run)
    [first, _] = check(run.write(tmp_path)).violations

    sentence, *lines = first.splitlines()
    assert sentence == (
        "No loss: event north-k1-3 (tenant north, key k1, version 3) has no effect in group audit,"
        " is not parked, and its outbox row is SENT"
    )
    assert ["faults.jsonl:2", "faults.jsonl:3"] == [line.split()[0] for line in lines[:2]]
    assert lines[2].split()[0] == "history-relay-1.jsonl:10"
    assert '"north-k1-3"' in lines[2]


def test_torn_last_line_is_counted_and_left_out(tmp_path: Path) -> None:
    clean_folder().write(tmp_path)
    with (tmp_path / "history-relay-1.jsonl").open("a") as file:
        file.write('{"t": 12.0, "proc": "rel')
    report = check(tmp_path)

    assert [] == report.violations
    assert 1 == report.figures["torn_lines"]


def test_figures(tmp_path: Path) -> None:
    figures = check(clean_folder().write(tmp_path)).figures

    assert 15 == figures["messages"]
    assert 27 == figures["effects"]
    assert {"cut": 1, "kill relay": 2} == figures["faults"]
    recovery = {"count": 2, "p50": 2.0, "p95": 4.0, "max": 4.0}
    assert {"kill relay": recovery} == figures["recovery_seconds"]
    assert 1 == figures["wire_duplicates"]
    assert 0.5 == figures["duplicates_per_crash"]
    assert {"TooLarge": 1} == figures["dead"]
    assert {"unknown type": 1} == figures["parked"]
    assert [0, 0, 0, 0] == [
        figures[name] for name in ("lost", "ghosts", "double_effects", "out_of_order")
    ]
