"""One life of a process: forked from a warm parent, ended by `os._exit` where it is told."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from sqlalchemy.ext.asyncio import create_async_engine

from semel.failpoints import switched_on
from tests.crash.bugs import BUGS
from tests.crash.story import Story
from tests.crash.world import Books, Violation, World

DEAD = 137
_SECONDS = 90.0


@dataclass(slots=True)
class Life:
    """How it ended: killed at its failpoint, or at the end of the story with these books."""

    killed: bool = False
    violations: list[Violation] = field(default_factory=list)
    hits: dict[str, int] = field(default_factory=dict)


class Place:
    """A database of a worker's own, and a folder for what outlives its processes."""

    def __init__(self, url: str, folder: Path) -> None:
        self.folder = folder
        # Made once, and never connected here.
        self.engine = create_async_engine(url, hide_parameters=True)

    def create(self) -> None:
        """Make the tables."""
        assert 0 == _forked(lambda: asyncio.run(self._create()))

    async def _create(self) -> None:
        world = World(self.engine, self.folder)
        await world.create()
        await world.close()

    def live(
        self,
        story: Story,
        *,
        fresh: bool,
        die_at: tuple[str, int] | None = None,
        bug: str | None = None,
    ) -> Life:
        """Tell the story in a process of its own, which dies at the n-th pass of a failpoint."""
        report = self.folder / "report"
        report.unlink(missing_ok=True)

        def life() -> None:
            report.write_text(json.dumps(asyncio.run(self._live(story, fresh, die_at, bug))))

        code = _forked(life)
        if code == DEAD:
            return Life(killed=True)
        if code != 0:
            return Life(violations=[Violation("stuck", f"ended with {code}")])
        told = json.loads(report.read_text())
        return Life(
            violations=[Violation(*each) for each in told["violations"]],
            hits=told["hits"],
        )

    async def _live(
        self, story: Story, fresh: bool, die_at: tuple[str, int] | None, bug: str | None
    ) -> dict[str, object]:
        world, hits = World(self.engine, self.folder), Counter[str]()

        def passed(name: str) -> None:
            hits[name] += 1
            if die_at == (name, hits[name]):
                os._exit(DEAD)

        books = Books(world)
        with BUGS[bug]() if bug else nullcontext():
            await (world.empty() if fresh else world.let_leases_expire())
            with switched_on(passed, *([die_at[0]] if die_at else ())):
                try:
                    async with asyncio.timeout(_SECONDS):
                        await story.run(world)
                except Exception as error:  # noqa: BLE001  a life that cannot go on is a finding
                    books.add("stuck", _last_lines(error))
            await story.check(books)
            await world.close()
        return {"violations": books.violations, "hits": hits}


def _last_lines(error: Exception) -> str:
    ours = [
        f for f in traceback.extract_tb(error.__traceback__) if "site-packages" not in f.filename
    ]
    where = ", ".join(f"{Path(f.filename).name}:{f.lineno}" for f in ours[-4:])
    return f"{type(error).__name__}: {str(error)[:200]} at {where}"


def _forked(work: Callable[[], None]) -> int:
    """Do *work* in a copy of this process, which has no threads; return how it ended."""
    child = os.fork()
    if child == 0:
        _be(work)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def _be(work: Callable[[], None]) -> NoReturn:
    code = 1
    try:
        gc.disable()  # it would copy the parent's memory, and the life is short
        logging.disable(logging.CRITICAL)
        work()
        code = 0
    except BaseException:  # noqa: BLE001  nothing of the parent's may run in the child
        traceback.print_exc()
    finally:
        os._exit(code)
