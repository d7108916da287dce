"""An event that kills whoever publishes it is found, and the others go out."""

from __future__ import annotations

import signal
from pathlib import Path

from semel.sqlalchemy.storage import SqlAlchemyStorage
from tests.scenarios.processes import FileBus, spawn
from tests.scenarios.relaying import add_many, each_database, eventually, rows, statuses
from tests.services import Database

LIVES = 30


@each_database
async def test_deadly_event_becomes_dead_and_the_others_go_out(
    storage: SqlAlchemyStorage, database: Database, tmp_path: Path
):
    """R15: each life ends at the deadly event, but others are sent; at last it is DEAD."""
    events = [(f"e{number}", None) for number in range(60)]
    await add_many(storage, events)
    broker = FileBus(tmp_path / "broker")
    deaths = 0
    settings = {"max_retry_attempts": 3, "retry_base_seconds": 0.1, "retry_max_seconds": 0.1}
    for _ in range(LIVES):
        with spawn(database.url, broker.path, bus={"killer": "e30"}, config=settings) as child:
            await eventually(lambda c=child: _over(storage, c.process.poll()), seconds=30)
            if child.process.poll() is None:
                await child.stopped()
                break
            assert -signal.SIGKILL == await child.ended()
            deaths += 1
    found = await rows(storage)
    await broker.close()

    assert {"SENT": 59, "DEAD": 1} == await statuses(storage)
    assert "DEAD" == found["e30"].status
    assert 3 <= deaths <= 8
    assert {event_id for event_id, _ in events} - {"e30"} == set(broker.ids())


async def _over(storage: SqlAlchemyStorage, code: int | None) -> bool:
    return code is not None or set(await statuses(storage)) <= {"SENT", "DEAD"}
