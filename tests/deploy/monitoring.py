"""Alerts, dashboard and pages as data, and the metrics that they name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

from semel.metrics import ALL, METRICS
from tests.docs.pages import ROOT

RULES = ROOT / "deploy/prometheus/alerts.yml"
RULE_TESTS = ROOT / "deploy/prometheus/alerts_test.yml"
DASHBOARD = ROOT / "deploy/grafana/semel.json"
OPERATIONS = ROOT / "docs/operations"
RUNBOOKS = OPERATIONS / "runbooks"

_NAME = re.compile(r"\b(?:outbox|consumer|idempotency|command|cleanup|semel)_[a-z_]+\b")
_LABELS = {label for metric in ALL for label in metric.labels}
_PARTS = ("_bucket", "_sum", "_count")


def alerts() -> list[dict[str, Any]]:
    document = yaml.safe_load(RULES.read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    document = json.loads(DASHBOARD.read_text())
    return [panel for panel in document["panels"] if panel["type"] != "row"]


def queries() -> Iterator[tuple[str, str]]:
    """Return whose query it is, and the query."""
    for alert in alerts():
        yield alert["alert"], alert["expr"]
    for panel in panels():
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for match in re.finditer(
        r"```promql\n(.*?)```", (OPERATIONS / "metrics.md").read_text(), re.DOTALL
    ):
        yield "metrics.md", match[1]


def names(text: str) -> set[str]:
    """Return the metrics that a query or a page names."""
    return {_metric(name) for name in _NAME.findall(text)} - _LABELS


def _metric(name: str) -> str:
    for part in _PARTS:
        base = name.removesuffix(part)
        if base != name and base in METRICS and METRICS[base].kind == "histogram":
            return base
    return name
