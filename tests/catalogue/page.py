"""The catalogue as a page of the documentation, and as figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.catalogue.catalogue import SECTIONS, SECURITY, Row

_HEAD = """\
# Failure modes

<!-- Made by `python -m tests.catalogue` from tests/catalogue/*.toml; not edited by hand. -->

What may go wrong, what happens then, and which tests show it: {modes} failure modes, of which
{covered} have tests, and {rules} rules of security. What the tests leave open stands below each
table. [Guarantees](../guarantees.md) has the promises that this serves;
[RELIABILITY.md](../../RELIABILITY.md) has the runs.
"""


def page(catalogue: Mapping[str, Sequence[Row]]) -> str:
    """Return the page."""
    figures = count(catalogue)
    return "\n".join([_HEAD.format(**figures), *_sections(catalogue)])


def count(catalogue: Mapping[str, Sequence[Row]]) -> dict[str, Any]:
    """Return the figures of the catalogue."""
    modes = [row for name, rows in catalogue.items() if name != SECURITY for row in rows]
    return {
        "modes": len(modes),
        "covered": sum(bool(row.tests) for row in modes),
        "explained": sum(not row.tests for row in modes),
        "with_a_gap_that_is_said": sum(bool(row.tests and row.gap) for row in modes),
        "rules": len(catalogue[SECURITY]),
        "tests": len({test for rows in catalogue.values() for row in rows for test in row.tests}),
    }


def _sections(catalogue: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    for name, rows in catalogue.items():
        yield f"## {SECTIONS[name][0]}\n"
        left = "rule" if name == SECURITY else "failure"
        yield f"| id | {left} | what happens | shown by |\n|---|---|---|---|"
        for row in rows:
            tests = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in row.tests)
            yield f"| {row.id} | {row.failure} | {row.behaviour} | {tests or 'see below'} |"
        notes = [f"- **{row.id}**: {row.gap}" for row in rows if row.gap]
        yield "\n" + "\n".join([*notes, ""] if notes else [])
