"""The demo on the screen: live on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.columns import Columns
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

_STATUSES = ("NEW", "PUBLISHING", "SENT", "FAILED", "DEAD")
_COLOURS = {"NEW": "cyan", "PUBLISHING": "blue", "SENT": "green", "FAILED": "yellow", "DEAD": "red"}


class Display:
    """Shows figures and what happens."""

    def __init__(self, console: Console, orders: int) -> None:
        self._console = console
        self._orders = orders
        self._figures: dict[str, int] = {}
        self._lines: list[str] = []
        self._started = time.monotonic()
        self._live: Live | None = None
        if console.is_terminal:
            self._live = Live(
                console=console, get_renderable=self._render, refresh_per_second=8, transient=False
            )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """Something happened."""
        line = f"{time.monotonic() - self._started:6.1f}s  {text}"
        self._lines.append(line)
        if self._live is None:
            self._console.print(line, highlight=False)

    def show(self, figures: dict[str, int]) -> None:
        """The figures changed."""
        self._figures = figures

    def _render(self) -> Panel:
        figures = self._figures
        outbox = Table(title="outbox", show_header=False, box=None, title_justify="left")
        for status in _STATUSES:
            number = figures.get(status, 0)
            outbox.add_row(f"[{_COLOURS[status]}]{status}[/]", f"{number:>6}")
        totals = Table(title="so far", show_header=False, box=None, title_justify="left")
        for name, label in (
            ("orders", "orders committed"),
            ("undone", "rolled back"),
            ("published", "published"),
            ("duplicates", "of them again"),
            ("effects", "effects"),
        ):
            totals.add_row(label, f"{figures.get(name, 0):>6}")
        done = ProgressBar(
            total=max(1, figures.get("orders", 0)), completed=figures.get("effects", 0)
        )
        story = Text("\n".join(self._lines[-8:]))
        return Panel(
            Group(Columns([outbox, totals], padding=(0, 6)), done, story),
            title=f"semel demo: {self._orders} orders",
            border_style="dim",
        )
