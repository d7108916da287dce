"""Real servers, fresh databases, and the closing lines that tell what the run was worth."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.browser import page  # noqa: F401  a fixture
from tests.services import (
    BACKENDS,
    MISSING,
    SERVICES,
    Database,
    fresh_database,
    mark,
    service_url,
    shown_url,
    variable,
    version,
)


def pytest_configure(config: pytest.Config) -> None:
    """Have semel's own fixtures where it is on the path but not installed."""
    if not config.pluginmanager.has_plugin("semel"):
        config.pluginmanager.import_plugin("semel.testing.plugin")


@pytest.fixture
def service() -> Callable[[str], str]:
    """``service("redis")`` is the URL of a real Redis; such a test has ``pytest.mark.redis``."""
    return service_url


@pytest.fixture(params=list(BACKENDS))
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A fresh database on each backend in turn.

    For some: ``@pytest.mark.parametrize("database", ["sqlite", "mariadb"], indirect=True)``.
    """
    with fresh_database(request.param, tmp_path) as fresh:
        yield fresh


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Database]:
    with fresh_database("sqlite", tmp_path) as fresh:
        yield fresh


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[Database]:
    with fresh_database("postgres", tmp_path) as fresh:
        yield fresh


@pytest.fixture
def mariadb(tmp_path: Path) -> Iterator[Database]:
    with fresh_database("mariadb", tmp_path) as fresh:
        yield fresh


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark each test by the databases that its fixtures bring: ``-m "not postgres"`` just works."""
    backends = {"sqlite", "postgres", "mariadb"} & set(getattr(item, "fixturenames", ()))
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    if parameters.get("database") in BACKENDS:
        backends.add(mark(parameters["database"]))
    if "page" in getattr(item, "fixturenames", ()):
        backends.add("browser")
    for backend in backends:
        item.add_marker(backend)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which servers were real, and in one line which were missing."""
    tests, skipped = Counter[str](), Counter[str]()
    for outcome, reports in terminalreporter.stats.items():
        for report in reports:
            if outcome in ("passed", "failed"):
                tests.update(set(SERVICES) & set(report.keywords))
            elif outcome == "skipped":
                reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else "no reason"
                skipped[reason.removeprefix("Skipped: ")] += 1

    given = [name for name in SERVICES if os.environ.get(variable(name))]
    if given or skipped:
        terminalreporter.section("real servers and skipped tests")
    for name in given:
        try:
            release = version(name)
        except Exception as error:  # noqa: BLE001 - a dead server must not spoil the summary
            release = f"does not answer ({type(error).__name__})"
        told = f"{name} {release}".strip()
        terminalreporter.line(f"{told}, {tests[name]} tests, {shown_url(name)}")
    missing = [name for name in SERVICES if f"{MISSING}{name}" in skipped]
    wanting = sum(skipped.pop(f"{MISSING}{name}") for name in missing)
    for reason, count in skipped.items():
        terminalreporter.line(f"{count} skipped: {reason}", yellow=True)
    if missing:
        names = " ".join(missing)
        terminalreporter.line(
            f"{wanting} skipped for want of {names}: `make test` starts servers, or "
            f'`scripts/services up {names}` and `eval "$(scripts/services env)"`',
            yellow=True,
        )
