"""A hundred thousand dead events: progress, Ctrl-C, two operators at once."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import func, insert, select

from semel.sqlalchemy.layout import DEAD_BLOCKING, PARTITIONS
from semel.sqlalchemy.tables import OutboxRecord
from semel.states import OutboxStatus
from tests.cli.conftest import Cli, both

pytestmark = [both, pytest.mark.slow, pytest.mark.timeout(300)]

DEAD = 100_000
_FIGURE = re.compile(r"(\d[\d,]*) events")


def rows(start: int, stop: int) -> list[dict[str, Any]]:
    now = datetime.now(UTC)
    return [
        {
            "id": f"e-{n}",
            "tenant_id": "default",
            "topic": "orders",
            "event_type": "OrderPlaced",
            "order_key": f"k-{n % 1000}",
            "occurred_at": now,
            "created_at": now,
            "payload": "{}",
            "content_type": "application/json",
            "event_metadata": "{}",
            "status": OutboxStatus.DEAD.value,
            "retry_count": 5,
            "partition_no": n % PARTITIONS,
            "lane": DEAD_BLOCKING + n % PARTITIONS,
        }
        for n in range(start, stop)
    ]


async def fill(storage: Any) -> None:
    async with storage.engine.begin() as connection:
        for start in range(0, DEAD, 10_000):
            await connection.execute(insert(OutboxRecord), rows(start, start + 10_000))


async def figures(storage: Any) -> dict[str, tuple[int, int, int]]:
    """By status: how many, the lowest and the highest number."""
    sequence = OutboxRecord.sequence
    query = select(OutboxRecord.status, func.count(), func.min(sequence), func.max(sequence))
    async with storage.engine.connect() as connection:
        found = await connection.execute(query.group_by(OutboxRecord.status))
        return {row[0]: (row[1], row[2], row[3]) for row in found}


def lines(terminal: int) -> Iterator[str]:
    """What appears on a terminal, piece by piece, until nobody writes to it any more."""
    while True:
        try:
            data = os.read(terminal, 4096)
        except OSError:
            return
        if not data:
            return
        yield data.decode("utf-8", "replace")


def test_requeue_with_progress_ctrl_c_and_two_operators(cli: Cli) -> None:
    """Ctrl-C ends it between two batches; two operators then requeue each row once."""
    cli.do(fill)
    ours, theirs = os.openpty()
    process = cli.start("outbox", "requeue", "--all", "--yes", "--json", stderr=theirs)
    os.close(theirs)
    seen = ""
    told = False
    for text in lines(ours):
        seen += text
        if not told and any(int(n.replace(",", "")) >= 1000 for n in _FIGURE.findall(seen)):
            process.send_signal(signal.SIGINT)
            told = True
    out, _ = process.communicate(timeout=100)
    os.close(ours)

    assert 130 == process.returncode, seen
    assert "cancelled" in seen
    first = json.loads(out)
    assert first["cancelled"]
    assert 1000 <= first["changed"] < DEAD
    after = cli.do(figures)
    assert first["changed"] == after["NEW"][0]
    assert DEAD - first["changed"] == after["DEAD"][0]
    # Lowest first: no event of a key overtakes an earlier one.
    assert after["NEW"][2] < after["DEAD"][1]

    operators = [cli.start("outbox", "requeue", "--all", "--yes", "--json") for _ in range(2)]
    answers = []
    for operator in operators:
        out, err = operator.communicate(timeout=200)
        assert 0 == operator.returncode, err
        answers.append(json.loads(out)["changed"])
    assert DEAD - first["changed"] == sum(answers)
    assert {"NEW": (DEAD, 1, DEAD)} == cli.do(figures)
