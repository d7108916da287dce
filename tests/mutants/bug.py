"""A planted bug: what is replaced in the product, and which tests must notice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class PatchError(Exception):
    """A patch does not fit the product any more: write it anew."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Exchange *old* for *new* in a file of the product; *old* must occur exactly once."""

    file: str
    old: str
    new: str

    def apply(self, root: Path) -> None:
        """Change the file below *root*; raise `PatchError` if the text is not there once."""
        path = root / "src" / "semel" / self.file
        text = path.read_text()
        if (found := text.count(self.old)) != 1:
            raise PatchError(f"{self.file} has {found} times, not once:\n{self.old}")
        changed = text.replace(self.old, self.new)
        compile(changed, self.file, "exec")
        path.write_text(changed)


@dataclass(frozen=True, slots=True)
class Bug:
    """One bug of the list, or one form of it.

    *found_by* are tests that must fail with it and pass without, fastest first.
    """

    id: str
    sentence: str
    edits: tuple[Edit, ...]
    found_by: tuple[str, ...]

    @property
    def number(self) -> int:
        """The number in the list of bugs: 12 for B12a and B12b."""
        return int(self.id[1:].rstrip("abcdefgh"))

    def apply(self, root: Path) -> None:
        """Plant the bug in the tree at *root*."""
        for edit in self.edits:
            edit.apply(root)


def node(file: str, name: str) -> str:
    """Return a test as pytest names it."""
    return f"tests/{file}.py::{name}"
