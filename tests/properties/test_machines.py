"""Any sequence of calls has the outcome that the promises say. More of it: `make chaos`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase

from semel.sqlalchemy import gate, inbox_store, outbox_bulk
from semel.sqlalchemy.idempotency import SqlAlchemyIdempotencyStore
from semel.sqlalchemy.relay import SqlAlchemyRelayStore
from tests.properties.machines import attack
from tests.properties.world import World, budget, world
from tests.services import fresh_database


@pytest.fixture(scope="module")
def sqlite_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder: Path = tmp_path_factory.mktemp("properties")
    with fresh_database("sqlite", folder) as database, world(database.url) as made:
        yield made


@pytest.mark.sqlite
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "examples", "steps"), [("outbox", 25, 40), ("inbox", 15, 30), ("idempotency", 20, 30)]
)
def test_no_sequence_of_calls_breaks_a_promise(
    sqlite_world: World, name: str, examples: int, steps: int
) -> None:
    attack(name, sqlite_world, budget(examples, steps, derandomize=True))


def unfenced(monkeypatch: pytest.MonkeyPatch) -> None:
    async def held(_: Any, __: Any, ___: Any, epochs: dict[int, int]) -> set[int]:
        return set(epochs)

    monkeypatch.setattr(SqlAlchemyRelayStore, "_held", held)


def attempts_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(outbox_bulk._AGAIN, "retry_count")


def dead_ones_cleaned_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_store, "old_records", lambda line: gate.INBOX.c.processed_at < line)


def payloads_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "_differ", lambda *_: False)


def taken_from_the_living(monkeypatch: pytest.MonkeyPatch) -> None:
    free = SqlAlchemyIdempotencyStore._free

    def lapsed(self: SqlAlchemyIdempotencyStore, found: Any) -> Any:
        return found.token != "" if found.state == "STARTED" else free(self, found)

    monkeypatch.setattr(SqlAlchemyIdempotencyStore, "_free", lapsed)


@pytest.mark.sqlite
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "plant"),
    [
        ("outbox", unfenced),
        ("outbox", attempts_kept),
        ("inbox", dead_ones_cleaned_up),
        ("inbox", payloads_not_compared),
        ("idempotency", taken_from_the_living),
    ],
)
def test_a_planted_bug_is_found(
    sqlite_world: World, monkeypatch: pytest.MonkeyPatch, name: str, plant: Any
) -> None:
    """A machine that could not fail would prove nothing."""
    plant(monkeypatch)
    found = budget(60, 40, derandomize=True, phases=[Phase.generate])
    with pytest.raises(AssertionError):
        attack(name, sqlite_world, found)


@pytest.mark.sqlite
@pytest.mark.timeout(600)
def test_the_long_run_counts_what_it_tried(tmp_path: Path) -> None:
    """`python -m tests.properties` runs all machines at least once, and writes its figures."""
    out = tmp_path / "properties.json"
    url = f"sqlite+aiosqlite:///{tmp_path / 'semel.db'}"
    command = [sys.executable, "-m", "tests.properties", "--minutes", "0", "--examples", "1"]
    done = subprocess.run(
        [*command, "--database", url, "--json", str(out)], capture_output=True, check=False
    )
    assert 0 == done.returncode, done.stderr.decode()
    result = json.loads(out.read_text())
    assert ("properties", []) == (result["layer"], result["failures"])
    assert {"outbox", "inbox", "idempotency"} == {run["machine"] for run in result["runs"]}
    assert all(run["examples"] >= 1 and run["steps"] > 1 for run in result["runs"])
