"""The documentation as data: pages, code blocks, links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(
    r"(?P<note><!--[^>]*-->\s*)?^```(?P<kind>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL
)
_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block, the comment before it, and where it stands."""

    page: Path
    line: int
    kind: str
    code: str
    note: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """Every page that a reader may come across."""
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])


def blocks(*kinds: str) -> Iterator[Block]:
    """Return the blocks of these kinds on all pages."""
    for page in pages():
        text = page.read_text()
        for match in _FENCE.finditer(text):
            if match["kind"] in kinds:
                line = text.count("\n", 0, match.start("kind")) + 1
                yield Block(page, line, match["kind"], match["code"], match["note"] or "")


def links() -> Iterator[tuple[Path, str]]:
    """Return all links to files of the repository."""
    for page in pages():
        text = re.sub(_FENCE, "", page.read_text())
        for match in _LINK.finditer(text):
            target = match["target"].partition("#")[0]
            if target and "://" not in target and not target.startswith("mailto:"):
                yield page, target
