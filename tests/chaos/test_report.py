"""RELIABILITY.md is what the committed results say, and says it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.chaos.checker import check
from tests.chaos.folders import clean_folder
from tests.chaos.report import BUGS, PAGE, ROOT, collect, rendered, save
from tests.chaos.report_page import page


def test_nobody_wrote_in_the_page() -> None:
    assert rendered() == PAGE.read_text(), "run: python -m tests.chaos report"


def test_every_bug_that_was_found_has_its_test() -> None:
    folders = (ROOT / "tests", ROOT / "src/semel/testing")
    sources = [path.read_text() for folder in folders for path in folder.rglob("*.py")]
    bugs = [line for line in BUGS.read_text().splitlines() if line.startswith("- ")]
    assert bugs
    for bug in bugs:
        tests = re.findall(r"`(test_\w+)`", bug)
        assert tests, bug
        for test in tests:
            assert any(f"def {test}(" in source for source in sources), test


def chaos(folder: Path) -> dict[str, Any]:
    folder.mkdir()
    return check(clean_folder().write(folder)).figures


def test_page_tells_the_figures_of_a_run(tmp_path: Path) -> None:
    results = tmp_path / "results"
    save(results / "chaos-sqlite-database.json", "chaos", chaos(tmp_path / "run"))
    text = page(collect(results), ["- A bug. Fixed in abc."])

    assert (
        "**1 min of chaos, 15 events, 3 faults: "
        "lost 0, ghosts 0, double effects 0, out of order 0.**"
    ) in text
    [row] = [line for line in text.splitlines() if line.startswith("| sqlite | database |")]
    shown = [cell.strip() for cell in row.split("|")[1:-1]]
    assert ["sqlite", "database", "7", "1", "15", "3", "0", "0", "0", "0"] == shown[:10]
    assert ["1 (6.67 %)", "0.5", "0"] == shown[10:13]
    assert "| kill relay | 2 | 2 | 4 | 4 |" in text
    assert "1 DEAD, TooLarge; 1 parked, unknown type." in text
    assert text.endswith("## Bugs that this found\n\n- A bug. Fixed in abc.\n")


def test_page_shows_what_went_wrong(tmp_path: Path) -> None:
    folder, run = tmp_path / "run", clean_folder()
    run.drop("effects", "north-k1-3")
    run.state["quiescent_after"] = None
    folder.mkdir()
    results = tmp_path / "results"
    save(results / "chaos-sqlite-database.json", "chaos", check(run.write(folder)).figures)
    text = page(collect(results), [])

    assert "lost 2, ghosts 0" in text
    [row] = [line for line in text.splitlines() if line.startswith("| sqlite | database |")]
    assert ["2", "0", "0", "0"] == [cell.strip() for cell in row.split("|")[7:11]]
    assert "1" == row.split("|")[13].strip()


def test_other_layers_are_tables_of_whatever_they_counted(tmp_path: Path) -> None:
    """A file that does not tell its layer is named after it."""
    many = {f"point {n}": n for n in range(10)}
    crash = json.dumps({"points": many, "by_story": {"shop": 3}, "violations": []})
    (tmp_path / "crash-sqlite.json").write_text(crash)
    (tmp_path / "crash-postgres.json").write_text(crash)
    mutants = {"found": 1, "bugs": 2, "findings": [_finding("tests/a.py"), _finding(None)]}
    (tmp_path / "mutants.json").write_text(json.dumps(mutants))
    text = page(collect(tmp_path), [])

    assert "| run | points | by story | violations | commit |" in text
    assert "| postgres | 45 | shop 3 | 0 | " in text
    assert "| sqlite | 45 | shop 3 | 0 | " in text
    assert "| B1: no fence | `tests/a.py` | 2.5 |" in text
    assert "| B1: no fence | **nobody** | 2.5 |" in text
    assert "Process chaos" not in text


def _finding(test: str | None) -> dict[str, Any]:
    return {"id": "B1", "bug": "no fence", "found_by": test, "seconds": 2.5}


def test_a_new_result_replaces_the_old_one_of_its_name(tmp_path: Path) -> None:
    path = tmp_path / "simulation.json"
    save(path, "simulation", {"seeds": 1})
    old = collect(tmp_path)
    save(path, "simulation", {"seeds": 2})
    merged = old | collect(tmp_path)

    assert ["simulation"] == list(merged)
    assert 2 == merged["simulation"]["seeds"]
    assert {"layer", "commit", "date"} <= set(merged["simulation"])


def test_no_password_is_published(tmp_path: Path) -> None:
    url = "postgresql+asyncpg://semel:secret@127.0.0.1/db"
    (tmp_path / "properties.json").write_text(json.dumps({"database": url}))

    [result] = collect(tmp_path).values()
    assert "postgresql+asyncpg://127.0.0.1/db" == result["database"]
