"""Alerts fire when they should; they, the dashboard and the pages speak of metrics that exist."""

from __future__ import annotations

import dataclasses
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from semel.cli.app import app
from semel.metrics import ALL, METRICS, Metric
from semel.settings import OutboxProjectorConfig
from semel.sqlalchemy.tables import metadata
from tests.deploy.monitoring import (
    OPERATIONS,
    RULE_TESTS,
    RULES,
    RUNBOOKS,
    alerts,
    names,
    panels,
    queries,
)
from tests.docs.pages import ROOT
from tests.services import tool

ALERTS = [alert["alert"] for alert in alerts()]


def promtool(*arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [tool("promtool"), *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_rules_are_well_formed() -> None:
    done = promtool("check", "rules", RULES, folder=RULES.parent)
    assert 0 == done.returncode, done.stdout + done.stderr


def test_alerts_fire_when_they_should() -> None:
    done = promtool("test", "rules", RULE_TESTS, folder=RULES.parent)
    assert 0 == done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("silenced", ALERTS)
def test_an_alert_that_never_fires_would_be_noticed(silenced: str, tmp_path: Path) -> None:
    """The tests of the rules fail if any one of the alerts is silent."""
    document = yaml.safe_load(RULES.read_text())
    for group in document["groups"]:
        for rule in group["rules"]:
            if rule["alert"] == silenced:
                rule["expr"] = "vector(0) > 1"
    (tmp_path / RULES.name).write_text(yaml.safe_dump(document))
    (tmp_path / RULE_TESTS.name).write_text(RULE_TESTS.read_text())
    done = promtool("test", "rules", RULE_TESTS.name, folder=tmp_path)
    assert 0 != done.returncode
    assert silenced in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("alert", "metric", "threshold"),
    [
        ("OutboxBacklogHigh", "outbox_backlog", "1000"),
        ("OutboxFailedHigh", "outbox_failed", "10"),
        ("OutboxDead", "outbox_dead", "0"),
        ("OutboxPublishLatencyHigh", "outbox_publish_latency_seconds", "5"),
    ],
)
def test_the_promised_thresholds(alert: str, metric: str, threshold: str) -> None:
    [rule] = [rule for rule in alerts() if rule["alert"] == alert]
    assert {metric} == names(rule["expr"])
    assert rule["expr"].endswith(f"> {threshold}")


@pytest.mark.parametrize(("where", "query"), list(queries()))
def test_a_query_names_metrics_that_exist(where: str, query: str) -> None:
    assert names(query), where
    assert set() == names(query) - set(METRICS), where


@pytest.mark.parametrize("metric", ALL, ids=lambda metric: metric.name)
def test_every_metric_has_a_panel_and_a_description(metric: Metric) -> None:
    shown = {
        found for panel in panels() for each in panel["targets"] for found in names(each["expr"])
    }
    assert metric.name in shown
    [row] = re.findall(
        rf"^\| `{metric.name}` \|.*$", (OPERATIONS / "metrics.md").read_text(), re.MULTILINE
    )
    kind, described = (cell.strip() for cell in row.split("|")[2:4])
    assert metric.kind == kind
    assert list(metric.labels) == re.findall(r"`(\w+)`", described)


def test_pages_name_no_metric_that_does_not_exist() -> None:
    for page in [*OPERATIONS.glob("*.md"), *RUNBOOKS.glob("*.md")]:
        for text in re.findall(r"`([a-z_]+)`", page.read_text()):
            if text.startswith(("outbox_", "consumer_")) and text not in metadata.tables:
                assert set() == names(text) - set(METRICS), f"{page.name}: {text}"


def test_the_dashboard_is_sound() -> None:
    """Ids are unique, panels do not overlap, and every query asks the chosen data source."""
    assert len({panel["id"] for panel in panels()}) == len(panels())
    cells: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        own = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not own & cells, panel["title"]
        assert place["x"] + place["w"] <= 24
        cells |= own
        for target in panel["targets"]:
            assert "${datasource}" == target["datasource"]["uid"]
            assert '{job=~"$job"}' in target["expr"]


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_has_its_runbook(alert: str) -> None:
    """A page of its own: what it means, what to look at, how to repair; linked and listed."""
    [rule] = [rule for rule in alerts() if rule["alert"] == alert]
    assert f"docs/operations/runbooks/{alert}.md" == rule["annotations"]["runbook_url"]
    page = (ROOT / rule["annotations"]["runbook_url"]).read_text()
    assert page.startswith(f"# {alert}\n")
    assert "\n## Look\n" in page
    assert "\n## Repair\n" in page
    assert "$ semel " in page
    assert f"[{alert}](runbooks/{alert}.md)" in (OPERATIONS / "metrics.md").read_text()


def test_every_runbook_has_its_alert() -> None:
    assert sorted(ALERTS) == sorted(page.stem for page in RUNBOOKS.glob("*.md"))


@pytest.mark.parametrize(
    "line",
    sorted(
        {
            line
            for page in RUNBOOKS.glob("*.md")
            for line in re.findall(r"^\$ semel (.+)$", page.read_text(), re.MULTILINE)
        }
    ),
)
def test_runbooks_use_commands_that_exist(line: str) -> None:
    """Every command, argument and option of a runbook is one that the program takes."""
    words = shlex.split(line)
    command: Any = typer.main.get_command(app)
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    assert not hasattr(command, "commands"), line
    known = {name for parameter in command.params for name in parameter.opts} | {"--help"}
    assert [] == [word for word in words if word.startswith("-") and word not in known]


def test_every_setting_of_the_projector_is_described() -> None:
    """By its name in the first column of a table; `from_env` derives the variable from it."""
    text = "".join(page.read_text() for page in OPERATIONS.glob("*.md"))
    assert "`SEMEL_OUTBOX_`" in text
    for field in dataclasses.fields(OutboxProjectorConfig):
        assert re.search(rf"^\|[^|]*`{field.name}`", text, re.MULTILINE), field.name
