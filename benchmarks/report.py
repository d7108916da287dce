"""Make docs/benchmarks.md and its charts from the answers: `python -m benchmarks.report`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.charts import chart

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "latest.json"
PAGE = ROOT / "docs" / "benchmarks.md"
IMAGES = ROOT / "docs" / "images"

HEADINGS = {
    "relay_sink": "The relay, without a broker",
    "relay_brokers": "The relay, to brokers",
    "backlog": "Large backlogs",
    "disturbed": "Long transactions and dead tuples",
    "keys": "Keys in trouble",
    "projectors": "More projectors",
    "write": "Adding events to a transaction",
    "wakeup": "Wake-ups",
    "latency": "From the commit to the broker",
    "inbox": "The inbox",
    "idempotency": "Idempotency keys",
    "other_databases": "MariaDB and SQLite",
    "footprint": "Memory and imports",
}
#: Where the profile is that says what a target would take, by question.
REASONS = {
    "relay_sink": "the-relay",
    "relay_brokers": "the-relay-and-a-broker",
    "backlog": "the-relay",
    "disturbed": "dead-tuples",
    "keys": "a-blocked-key",
    "projectors": "the-relay",
    "write": "writing",
    "wakeup": "writing",
    "latency": "latency",
    "inbox": "the-inbox",
    "idempotency": "idempotency-keys",
    "other_databases": "sqlite-and-mariadb",
    "footprint": "the-relay",
}
_INTRODUCTION = """\
# Benchmarks

<!-- Made by `python -m benchmarks.report` from benchmarks/results/latest.json: do not edit. -->

Each question compares sides that were measured in the same run on the same machine: the **limit**
(a bare loop of the same statements with the raw driver, a bare producer, a plain transaction),
**semel**, and other libraries. What counts is the ratio; rates differ from machine to machine.

- Servers are real, and durable: every commit is flushed to disk, every message is confirmed by its
  broker.
- Sides take turns, in another order in each round. The first round is discarded. A figure is the
  median of the others; the line in a chart goes from the least to the greatest.
- The clock of a relay starts when it asks for the first rows, and stops when its last event is
  acknowledged in the database.
- Databases, brokers, load and relay share the machine's cores.

`make bench` measures anew in some minutes; `make bench-full` has the largest backlogs, and other
libraries, each in an environment of its own. `semel bench --database URL --bus URL` asks the main
questions on your own servers.
"""


def main() -> None:
    """Write the page and its charts; remove charts that it no longer has."""
    page, images = build(json.loads(RESULTS.read_text()))
    PAGE.write_text(page)
    for old in IMAGES.glob("bench-*.svg"):
        if old.name not in images:
            old.unlink()
    for name, svg in images.items():
        (IMAGES / name).write_text(svg)


def build(answers: Sequence[dict[str, Any]]) -> tuple[str, dict[str, str]]:
    """The page, and the charts by file name."""
    images: dict[str, str] = {}
    parts = [_INTRODUCTION, *_machine(answers), _summary(answers)]
    for file, heading in HEADINGS.items():
        found = [answer for answer in answers if answer["file"] == file]
        if not found:
            continue
        parts.append(f"## {heading}\n")
        for answer in found:
            name = f"bench-{answer['question']}.svg"
            parts.append(_section(answer, name))
            if answer["sides"]:
                images[name] = chart(answer["sides"], answer["title"])
    return "\n".join(parts), images


def _machine(answers: Sequence[dict[str, Any]]) -> list[str]:
    """One line per machine, scale and day that the answers come from."""
    lines = []
    for answer in answers:
        machine = answer["machine"]
        versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
        line = (
            f"Measured on {answer['date']}: {machine['cores']} cores, {machine['memory_gib']} GiB, "
            f"{machine['system']}; {versions}.\n"
        )
        if answer["scale"] != 1:
            line = line.replace(
                "\n",
                f" **Only {answer['scale']:.0%} of the intended sizes: a look whether everything "
                "runs, not a measurement.**\n",
            )
        if line not in lines:
            lines.append(line)
    return lines


def _summary(answers: Sequence[dict[str, Any]]) -> str:
    rows = ["| question | ratio | target | |", "|---|---|---|---|"]
    for answer in answers:
        ratio = "" if answer["ratio"] is None else f"{answer['ratio']:.2f}"
        verdict = _verdict(answer)
        if answer["scale"] != 1:
            verdict = "a trial"
        link = f"[{answer['title']}](#{answer['question']})"
        rows.append(f"| {link} | {ratio} | {_target(answer)} | {verdict} |")
    return "\n".join([*rows, ""])


def _verdict(answer: dict[str, Any]) -> str:
    if answer["ratio"] is None:
        return "not measured"
    if answer["target"] is None:
        return "no target"
    reason = f"discussions/limits.md#{REASONS[answer['file']]}"
    return "met" if answer["met"] else f"**missed**: [why]({reason})"


def _target(answer: dict[str, Any]) -> str:
    if answer["target"] is None:
        return ""
    return f"{'≤' if answer['at_most'] else '≥'} {answer['target']:g}"


def _section(answer: dict[str, Any], image: str) -> str:
    lines = [f'<a id="{answer["question"]}"></a>', "", f"### {answer['title']}", ""]
    if answer["sides"]:
        lines += [f"![{answer['title']}](images/{image})", ""]
    if answer["ratio"] is not None:
        compared = f"{answer['measured']} / {answer['against']}"
        target = f" (target {_target(answer)})" if answer["target"] is not None else ""
        lines += [f"{compared} = **{answer['ratio']:.2f}**{target}.", ""]
    if answer["note"]:
        lines += [answer["note"], ""]
    if answer["absent"]:
        lines += ["Not measured here:", ""]
        lines += [f"- {name}: {reason}" for name, reason in answer["absent"].items()]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
