"""Every failpoint times every pass: kill there, start again, check the books."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from semel.failpoints import FAILPOINTS
from tests.crash import calls, housekeeping, letters, shop, trouble
from tests.crash.lives import Life, Place
from tests.crash.world import Violation
from tests.services import fresh_database

STORIES = {
    module.STORY.name: module.STORY for module in (shop, trouble, letters, calls, housekeeping)
}
_place: Place  # of this worker


class Task(NamedTuple):
    """One failpoint in one story; *most* bounds its passes, *deaths* is how often each kills."""

    story: str
    failpoint: str
    most: int | None
    deaths: int
    bug: str | None


@dataclass(slots=True)
class Found:
    """What became of a task."""

    task: Task
    passes: int = 0
    crashes: int = 0
    lives: int = 0
    violations: list[tuple[int, Violation]] = field(default_factory=list)


def sweep(
    database: str = "sqlite",
    *,
    stories: Collection[str] = tuple(STORIES),
    failpoints: Collection[str] = tuple(FAILPOINTS),
    everywhere: bool = False,
    once: bool = False,
    most: int | None = None,
    deaths: int = 1,
    bug: str | None = None,
    workers: int = (os.cpu_count() or 1) + 1,
) -> dict[str, Any]:
    """Sweep *stories* on *database*; return the figures, and what was broken.

    A story dies at the failpoints that it is about or, with *everywhere*, at all that it passes;
    with *once*, each failpoint kills in one story only, the last that is about it.
    *most* bounds the passes of a failpoint in a story; None means all. With more *deaths* than
    one, the process dies again at the same failpoint after each restart, and only then lives on.
    """
    began = time.monotonic()
    with ExitStack() as stack:
        context = multiprocessing.get_context("fork")
        places: SimpleQueue[tuple[str, Path]] = context.SimpleQueue()
        for _ in range(workers):
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="semel-crash-")))
            url = stack.enter_context(fresh_database(database, folder)).url
            Place(url, folder).create()
            places.put((url, folder))
        # Forked from here, where everything is imported and nothing is open.
        pool = stack.enter_context(context.Pool(workers, _settle, (places,)))
        undisturbed = pool.map(_tell, [(name, bug) for name in stories], chunksize=1)
        tasks = [
            Task(name, failpoint, most, deaths, bug)
            for name, life in zip(stories, undisturbed, strict=True)
            for failpoint in life.hits
            if failpoint in failpoints and (everywhere or STORIES[name].is_about(failpoint))
        ]
        if once:
            tasks = list({task.failpoint: task for task in tasks}.values())
        found = pool.map(_sweep, tasks, chunksize=1)
    figures = _figures(found, undisturbed, failpoints)
    return {"database": database, "seconds": round(time.monotonic() - began, 1)} | figures


def _figures(
    found: Sequence[Found], undisturbed: Sequence[Life], failpoints: Collection[str]
) -> dict[str, Any]:
    reached = {each.task.failpoint for each in found}
    broken = [
        {"story": each.task.story, "failpoint": each.task.failpoint, "pass": number}
        | violation._asdict()
        for each in found
        for number, violation in each.violations
    ]
    broken += [
        {"failpoint": None} | violation._asdict()
        for life in undisturbed
        for violation in life.violations
    ]
    return {
        "failpoints": len(reached),
        "unreached": sorted(set(failpoints) - reached),
        "points": sum(each.passes for each in found),
        "crashes": sum(each.crashes for each in found),
        "lives": len(undisturbed) + sum(each.lives for each in found),
        "kinds": dict(Counter(each["kind"] for each in broken)),
        "violations": broken,
    }


def _settle(places: SimpleQueue[tuple[str, Path]]) -> None:
    """Take a database of one's own."""
    global _place  # noqa: PLW0603  one per worker
    _place = Place(*places.get())


def _tell(told: tuple[str, str | None]) -> Life:
    """Tell a story without any death, which shows what it passes."""
    name, bug = told
    return _place.live(STORIES[name], fresh=True, bug=bug)


def _sweep(task: Task) -> Found:
    found, story = Found(task), STORIES[task.story]

    def live(number: int | None = None, *, fresh: bool = False) -> Life:
        found.lives += 1
        die_at = None if number is None else (task.failpoint, number)
        life = _place.live(story, fresh=fresh, die_at=die_at, bug=task.bug)
        found.crashes += life.killed
        return life

    for number in count(1) if task.most is None else range(1, task.most + 1):
        life = live(number, fresh=True)
        if not life.killed:
            # It has no such pass, and came to its end.
            found.violations += [(number, each) for each in life.violations]
            break
        found.passes += 1
        for _ in range(task.deaths - 1):
            life = live(1) if life.killed else life
        if life.killed:
            life = live()
        found.violations += [(number, each) for each in life.violations]
    return found
