"""Charts as plain SVG, readable on light and dark pages."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

WIDTH = 760
_LABEL, _BAR, _GAP = 290, 18, 10
_STYLE = """\
text { font: 13px system-ui, sans-serif; fill: #24292f; }
.limit { fill: #8c959f; } .semel { fill: #2f6fde; } .peer { fill: #bc8c5c; }
.spread { stroke: #24292f; stroke-width: 1.5; opacity: .55; }
@media (prefers-color-scheme: dark) {
  text { fill: #d0d7de; } .spread { stroke: #d0d7de; }
}"""


def chart(sides: Mapping[str, Mapping[str, Any]], title: str) -> str:
    """A bar per side, as long as its median; a line from its least figure to its greatest."""
    most = max(max(side["runs"]) for side in sides.values()) or 1.0
    room = WIDTH - _LABEL - 110
    height = len(sides) * (_BAR + _GAP) + _GAP
    box = f'viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box}>',
        f"<title>{escape(title)}</title>",
        f"<style>{_STYLE}</style>",
    ]
    for number, (name, side) in enumerate(sides.items()):
        top = _GAP + number * (_BAR + _GAP)
        length = room * side["median"] / most
        low, high = (_LABEL + room * edge(side["runs"]) / most for edge in (min, max))
        middle = f'y1="{top + _BAR / 2:g}" y2="{top + _BAR / 2:g}"'
        bar = f'y="{top}" width="{max(length, 1):.1f}" height="{_BAR}" rx="2"'
        line = f'y="{top + _BAR / 2 + 4.5:g}"'
        parts += [
            f'<text x="{_LABEL - 8}" {line} text-anchor="end">{escape(name)}</text>',
            f'<rect class="{_kind(name)}" x="{_LABEL}" {bar}/>',
            f'<line class="spread" x1="{low:.1f}" x2="{high:.1f}" {middle}/>',
            f'<text x="{max(_LABEL + length, high) + 6:.1f}" {line}>{_figure(side)}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def _figure(side: Mapping[str, Any]) -> str:
    median = side["median"]
    return f"{median:,.0f} {side['unit']}" if median >= 1000 else f"{median:,.4g} {side['unit']}"


def _kind(name: str) -> str:
    if name.startswith("limit"):
        return "limit"
    return "peer" if name.startswith(_PEERS) else "semel"


_PEERS = (
    *("faststream-outbox", "txoutbox", "sagaz", "python-cqrs", "omni-box", "seed-relay"),
    *("gruelbox", "idemkit"),
)
