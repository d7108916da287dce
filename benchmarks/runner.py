"""Ask questions: sides in turns, the first round discarded, the median of the others."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.services import variable

#: One measurement: a figure, or several of the same run by name.
Measure = Callable[[], Awaitable[float | Mapping[str, float]]]


class Absent(Exception):  # noqa: N818  a side that is not there, no error
    """A side that cannot be measured here, and why."""


@dataclass(slots=True)
class Side:
    """The figures of one side, one per round."""

    runs: list[float] = field(default_factory=list)
    unit: str = "events/s"

    @property
    def median(self) -> float:
        return statistics.median(self.runs)

    def as_dict(self) -> dict[str, Any]:
        figures = [_rounded(run) for run in self.runs]
        return {"median": _rounded(self.median), "runs": figures, "unit": self.unit}


Sides = dict[str, Side]


@dataclass(slots=True, kw_only=True)
class Answer:
    """One ratio within one run, and the target for it; no ratio where a side is absent."""

    question: str
    title: str
    sides: Sides
    measured: str
    against: str
    ratio: float | None
    target: float | None
    at_most: bool = False
    note: str = ""
    absent: dict[str, str] = field(default_factory=dict)

    @property
    def met(self) -> bool | None:
        if self.ratio is None or self.target is None:
            return None
        return self.ratio <= self.target if self.at_most else self.ratio >= self.target

    def as_dict(self) -> dict[str, Any]:
        return {
            "question": self.question,
            "title": self.title,
            "ratio": None if self.ratio is None else round(self.ratio, 3),
            "target": self.target,
            "at_most": self.at_most,
            "met": self.met,
            "measured": self.measured,
            "against": self.against,
            "sides": {name: side.as_dict() for name, side in self.sides.items()},
            "absent": self.absent,
            "note": self.note,
        }


class Bench:
    """One run: how large, how often, beside whom."""

    def __init__(self, *, scale: float, rounds: int, full: bool, peers: bool) -> None:
        self.scale = scale
        self.rounds = rounds
        self.full = full
        self.peers = peers
        self.answers: list[Answer] = []
        self.absent: dict[str, str] = {}
        self._doing = ""
        self._began = time.monotonic()

    def size(self, number: int, *, least: int = 1) -> int:
        """*number* of rows or events, scaled."""
        return max(least, round(number * self.scale))

    def server(self, name: str) -> str:
        """The address of a server; `Absent` without one."""
        url = os.environ.get(variable(name))
        if not url:
            raise Absent(f"no {name}: `make bench` starts one")
        return url

    async def compare(self, sides: Mapping[str, Measure], *, unit: str = "events/s") -> Sides:
        """Measure each side once per round, in turns, and in another order in the next round."""
        found: Sides = {}
        live = dict(sides)
        for number in range(self.rounds + 1):
            names = list(live)
            turn = number % len(names) if names else 0
            for name in names[turn:] + names[:turn]:
                what = f"round {number} of {self.rounds}" if number else "warm-up"
                self.tell(f"{what}: {name}")
                try:
                    figures = await live[name]()
                except Absent as reason:
                    self.absent[name] = str(reason)
                    del live[name]
                    continue
                if not isinstance(figures, Mapping):
                    figures = {"": figures}
                for part, figure in figures.items():
                    side = found.setdefault(f"{name}{part}", Side(unit=unit))
                    if number:
                        side.runs.append(figure)
        order = list(sides)
        present = {name: side for name, side in found.items() if side.runs}
        return dict(sorted(present.items(), key=lambda item: _place(item[0], order)))

    def answer(  # noqa: PLR0917  question, sides, measured, against: as one says it
        self,
        question: str,
        title: str,
        sides: Sides,
        measured: str,
        against: str | Iterable[str],
        target: float | None,
        *,
        at_most: bool = False,
        note: str = "",
    ) -> Answer:
        """Keep *measured* relative to *against*, the least of them if there are several."""
        names = [against] if isinstance(against, str) else list(against)
        ratio = None
        known = [name for name in names if name in sides]
        if measured in sides and known and (isinstance(against, str) or len(known) == len(names)):
            ratio = sides[measured].median / min(sides[name].median for name in known)
        label = names[0] if len(names) == 1 else f"the least of {', '.join(names)}"
        return self.keep(
            Answer(
                question=question,
                title=title,
                sides=sides,
                measured=measured,
                against=label,
                ratio=ratio,
                target=target,
                at_most=at_most,
                note=note,
            )
        )

    def answer_limit(  # noqa: PLR0917  as `answer`
        self, question: str, title: str, sides: Sides, measured: str, most: float, label: str
    ) -> Answer:
        """Keep *measured* relative to a figure that it must not exceed."""
        ratio = sides[measured].median / most if measured in sides else None
        return self.keep(
            Answer(
                question=question,
                title=title,
                sides=sides,
                measured=measured,
                against=label,
                ratio=ratio,
                target=1.0,
                at_most=True,
            )
        )

    def keep(self, answer: Answer) -> Answer:
        """Keep an answer whose ratio was worked out elsewhere."""
        answer.absent = dict(self.absent)
        self.answers.append(answer)
        self.tell("")
        sys.stdout.write(describe(answer.as_dict()) + "\n")
        sys.stdout.flush()
        return answer

    @contextmanager
    def asking(self, name: str) -> Any:
        """Name what is going on in the line of progress."""
        self._doing, self.absent = name, {}
        yield
        self.tell("")

    def tell(self, what: str) -> None:
        """Show where we are, on a terminal only, in one line."""
        if not sys.stderr.isatty():
            return
        seconds = time.monotonic() - self._began
        text = f"{seconds:5.0f} s  {self._doing}: {what}" if what else ""
        sys.stderr.write(f"\r\x1b[K{text[:110]}")
        sys.stderr.flush()


def describe(answer: Mapping[str, Any]) -> str:
    """A table of one answer."""
    lines = [f"\n{answer['title']}"]
    for name, side in answer["sides"].items():
        low, high = min(side["runs"]), max(side["runs"])
        spread = f"{low:,.6g} to {high:,.6g}"
        lines.append(f"  {name:<44}{side['median']:>14,.6g} {side['unit']:<10} {spread}")
    lines += [f"  {name:<44}{'absent:':>14} {why}" for name, why in answer["absent"].items()]
    if answer["ratio"] is None:
        return "\n".join(lines)
    sign = "at most" if answer["at_most"] else "at least"
    wanted = "" if answer["target"] is None else f", target {sign} {answer['target']:g}"
    verdict = {True: ": met", False: ": MISSED", None: ""}[answer["met"]]
    lines.append(
        f"  {answer['measured']} / {answer['against']} = {answer['ratio']:.2f}{wanted}{verdict}"
    )
    return "\n".join(lines)


def _rounded(figure: float) -> float:
    return float(f"{figure:.4g}")


def _place(name: str, order: list[str]) -> int:
    begins = [begin for begin in order if name.startswith(begin)]
    return order.index(max(begins, key=len))


def pick(sides: Sides, *names: str) -> Sides:
    """Those of *sides*."""
    return {name: side for name, side in sides.items() if name in names}
