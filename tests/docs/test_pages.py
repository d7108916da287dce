"""Every snippet runs, every link leads somewhere, every public name is described."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import semel
from tests.docs.pages import ROOT, Block, blocks, links
from tests.services import service_url

PYTHON = list(blocks("python"))


def test_there_are_snippets() -> None:
    """The collection below is not empty by mistake."""
    assert len(PYTHON) >= 3


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_snippet_runs(block: Block, tmp_path: Path) -> None:
    """The block runs as a program of its own, as a reader would copy it.

    A comment `<!-- needs: postgres -->` before it names the servers that it talks to.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONUTF8": "1"}
    needs = block.note.partition("needs:")[2].replace("-->", "").replace(",", " ").split()
    for name in needs:
        environment[f"SEMEL_TEST_{name.upper()}_URL"] = service_url(name)
    (tmp_path / "snippet.py").write_text(block.code)
    done = subprocess.run(
        [sys.executable, "snippet.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert 0 == done.returncode, f"{block}\n{done.stdout}\n{done.stderr}"


def test_readme_quickstart_prints_what_it_says(tmp_path: Path) -> None:
    """The first program of the README handles its order once."""
    first = next(block for block in PYTHON if block.page == ROOT / "README.md")
    (tmp_path / "quickstart.py").write_text(first.code)
    done = subprocess.run(
        [sys.executable, "quickstart.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )

    assert "once: 1\n" == done.stdout


@pytest.mark.parametrize(
    ("page", "target"), [pytest.param(*link, id=f"{link[0].name}->{link[1]}") for link in links()]
)
def test_link_leads_somewhere(page: Path, target: str) -> None:
    """The file that a page links to exists."""
    assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


@pytest.mark.parametrize("name", semel.__all__)
def test_public_name_is_in_the_reference(name: str) -> None:
    """Whatever `semel` exports is described in the reference."""
    reference = "".join(path.read_text() for path in (ROOT / "docs/reference").glob("*.md"))

    assert f"`{name}`" in reference
