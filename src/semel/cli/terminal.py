"""What a command says: results on stdout, words and progress on stderr."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, is_dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from semel.cli.exits import Exit
from semel.cli.target import Target
from semel.cli.work import fail

if TYPE_CHECKING:
    from semel.sqlalchemy.storage import SqlAlchemyStorage

T = TypeVar("T")
Advance = Callable[..., None]

_WIDE = 200
# Also those above ASCII, which some terminals obey: what is shown was written by others.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_CONTROL_ABOVE = re.compile(r"[\x7f-\x9f]")


@dataclass(slots=True)
class Terminal:
    """One call of a command: on which database, and how it answers."""

    target: Target
    as_json: bool = False
    actor: str = "unknown"
    yes: bool = False
    dry_run: bool = False

    def run(self, work: Callable[[SqlAlchemyStorage], Awaitable[T]]) -> T:
        """Do *work* on the database."""

        async def inside() -> T:
            storage = self.target.storage()
            try:
                await storage.ping()
                return await work(storage)
            finally:
                await asyncio.shield(_close(storage))

        return asyncio.run(inside())

    def show(self, value: Any, *pictures: RenderableType) -> None:
        """Print *value* as JSON if that was asked for, else the *pictures* of it."""
        if self.as_json:
            print_json(value)
            return
        console = stdout()
        for picture in pictures:
            console.print(picture, highlight=False)

    def say(self, text: str) -> None:
        """Tell the person in front of it."""
        stderr().print(clean(text), highlight=False, soft_wrap=True, markup=False)

    def may(self, question: str) -> bool:
        """Tell whether to go on; False after a dry run. Nobody there to ask: refuse."""
        if self.dry_run:
            self.say(f"dry run, nothing was changed: {question}")
            return False
        if self.yes:
            return True
        if not sys.stdin.isatty():
            fail(f"{question}? Nothing was done: add --yes, or --dry-run to look", Exit.USAGE)
        if not typer.confirm(f"{question}?", err=True):
            self.say("nothing was changed")
            raise typer.Exit(Exit.PROBLEM)
        return True

    @contextmanager
    def progress(self, title: str, unit: str = "events") -> Iterator[Advance]:
        """Show how far it is, on a terminal only; tell it what is done, and which share that is."""
        console = stderr()
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[done]}"))
        with Progress(
            *columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal
        ) as bar:
            task = bar.add_task(title, total=None, done="")

            def advance(done: int, share: float | None = None) -> None:
                total = None if share is None else 1.0
                bar.update(task, total=total, completed=share or 0.0, done=f"{done:,} {unit}")

            yield advance


async def _close(storage: SqlAlchemyStorage) -> None:
    await storage.close()
    # A hub may have brought its own engine, whose connections belong to this event loop.
    await storage.engine.dispose()


def stdout() -> Console:
    """Return a console for results; as wide as needed where nobody folds lines."""
    return _console(stderr=False)


def stderr() -> Console:
    """Return a console for words."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    console = Console(stderr=stderr)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _WIDE
    return console


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """Print one document on stdout."""
    text = json.dumps(plain(value), indent=indent, ensure_ascii=False, allow_nan=False)
    text = _CONTROL_ABOVE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def plain(value: Any) -> Any:
    """Return *value* as JSON has it: instants in ISO 8601, time spans in seconds."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, str):
        return [plain(item) for item in value]
    return value


def clean(text: str) -> str:
    """Return *text* without what a terminal would obey."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def cell(value: Any) -> Text:
    """Return *value* for a table: short, and never as markup."""
    if value is None or value == "":
        return Text("-", style="dim")
    if isinstance(value, datetime):
        return Text(f"{value:%Y-%m-%d %H:%M:%S}")
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    if isinstance(value, int):
        return figure(value)
    return Text(clean(str(value)), style=_STYLES.get(str(value), ""))


_STYLES = {
    "SENT": "green",
    "PROCESSED": "green",
    "ok": "green",
    "FAILED": "yellow",
    "warning": "yellow",
    "PARKED": "yellow",
    "DEAD": "bold red",
    "error": "bold red",
    "info": "cyan",
}


def figure(number: int, *, capped: bool = False) -> Text:
    """Return a number for a table; `+` means: at least."""
    return Text(f"{number:,}{'+' if capped else ''}", justify="right")


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None
) -> Table:
    """Return a table whose long cells fold rather than vanish."""
    made = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold")
    for row in rows:
        made.add_row(*[item if isinstance(item, Text) else cell(item) for item in row])
    return made


def pairs(items: Mapping[str, Any]) -> Table:
    """Return names and values, one below the other; what is not there is left out."""
    made = Table(box=None, show_header=False, pad_edge=False)
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in items.items():
        if value is not None:
            made.add_row(name, cell(value))
    return made


def ago(seconds: float | None) -> str | None:
    """Return a time span as people say it."""
    if seconds is None:
        return None
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s"
