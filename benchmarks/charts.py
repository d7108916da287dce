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
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}">',
        f"<title>{escape(title)}</title>",
        f"<style>{_STYLE}</style>",
    ]
    for number, (name, side) in enumerate(sides.items()):
        top = _GAP + number * (_BAR + _GAP)
        middle = top + _BAR / 2
        length = room * side["median"] / most
        low, high = (room * edge(side["runs"]) / most for edge in (min, max))
        text = f"{side['median']:,.4g} {side['unit']}"
        if side["median"] >= 1000:
            text = f"{side['median']:,.0f} {side['unit']}"
        parts += [
            f'<text x="{_LABEL - 8}" y="{middle + 4.5:g}" text-anchor="end">{escape(name)}</text>',
            f'<rect class="{_kind(name)}" x="{_LABEL}" y="{top}" width="{max(length, 1):.1f}" '
            f'height="{_BAR}" rx="2"/>',
            f'<line class="spread" x1="{_LABEL + low:.1f}" x2="{_LABEL + high:.1f}" '
            f'y1="{middle:g}" y2="{middle:g}"/>',
            f'<text x="{_LABEL + max(length, high) + 6:.1f}" y="{middle + 4.5:g}">'
            f"{escape(text)}</text>",
        ]
    return "\n".join([*parts, "</svg>", ""])


def _kind(name: str) -> str:
    if name.startswith("limit"):
        return "limit"
    return "peer" if name.startswith(_PEERS) else "semel"


_PEERS = (
    *("faststream-outbox", "txoutbox", "sagaz", "python-cqrs", "omni-box", "seed-relay"),
    *("gruelbox", "idemkit"),
)
