"""Every planted bug still fits the product, and the machinery finds bugs and tells the truth."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.__main__ import find, report, unsound
from tests.mutants.bug import Bug, Edit, PatchError, node
from tests.mutants.catalogue import BUGS, NUMBERS
from tests.mutants.workbench import workbench

ROOT = Path(__file__).parents[2]


def test_every_bug_of_the_list_is_planted() -> None:
    assert set(NUMBERS) == {bug.number for bug in BUGS}
    assert len(BUGS) == len({bug.id for bug in BUGS})


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.id)
def test_the_patch_fits(bug: Bug, tmp_path: Path) -> None:
    """Its text is there once, what comes out compiles, and its tests exist."""
    for file in {edit.file for edit in bug.edits}:
        copy = tmp_path / "src" / "semel" / file
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text((ROOT / "src" / "semel" / file).read_text())
    bug.apply(tmp_path)
    assert bug.found_by
    for test in bug.found_by:
        file, *_, name = test.split("::")
        function = name.partition("[")[0]
        defined = [ROOT / file, *(ROOT / "src/semel/testing/contracts").glob("*.py")]
        assert any(f"def {function}(" in path.read_text() for path in defined), test


def test_a_patch_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "src" / "semel" / "a.py"
    file.parent.mkdir(parents=True)
    file.write_text("one = 1\none = 1\n")
    for old in ("one = 1", "two"):
        with pytest.raises(PatchError):
            Edit("a.py", old, "").apply(tmp_path)
    with pytest.raises(SyntaxError):
        Edit("a.py", "one = 1\none", "one = (").apply(tmp_path)


@pytest.mark.timeout(240)
def test_bugs_are_found() -> None:
    """Two of them for real; a patch that is no bug is not found, and leaves no trace."""
    harmless = Bug(
        "B1",
        "no bug at all",
        (Edit("clock.py", "from __future__", "\nfrom __future__"),),
        (node("unit/test_window", "test_rows_given_back_go_first_again"),),
    )
    chosen = [bug for bug in BUGS if bug.id in ("B7a", "B13b")]
    with workbench() as bench:
        assert [] == unsound(bench, [*chosen, harmless], seconds=60)
        findings = [find(bench, bug, seconds=60) for bug in (*chosen, harmless)]
        for edit in (edit for bug in (*chosen, harmless) for edit in bug.edits):
            original = (ROOT / "src" / "semel" / edit.file).read_text()
            assert original == (bench.root / "src" / "semel" / edit.file).read_text()
    expected = [bug.found_by[0] for bug in chosen]
    assert [*expected, None] == [finding.test for finding in findings]
    figures = report(findings)
    assert (2, 3) == (figures["forms_found"], figures["forms"])
