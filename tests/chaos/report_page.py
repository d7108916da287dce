"""The text of RELIABILITY.md."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.chaos.report_texts import CHAOS, COMPARISON, HEAD, LAYERS, RECOVERY, Section

Result = Mapping[str, Any]

_WRONG = ("lost", "ghosts", "double_effects", "out_of_order")
_ABOUT = ("layer", "commit", "date")
_FEW = 6  # counts that a cell of a table lists one by one


def page(results: Mapping[str, Result], bugs: Sequence[str]) -> str:
    """Return the page for all results, by the names of their files."""
    layers: dict[str, list[Result]] = defaultdict(list)
    for name in sorted(results):
        variant = name.partition("-")[2]  # crash-postgres, crash-sqlite
        told = {"run": variant} if variant else {}
        layers[results[name]["layer"]].append(told | dict(results[name]))
    parts = [_head(layers["chaos"])]
    if layers["chaos"]:
        parts += _chaos(layers["chaos"])
    for layer, section in LAYERS.items():
        if layers[layer]:
            parts += _section(section, _figures(layers[layer]), *_planted(layers[layer]))
    parts += _comparison(layers["compare"])
    parts += ["## Bugs that this found", "\n".join(bugs) or "None yet."]
    return "\n\n".join(parts) + "\n"


def _head(runs: Sequence[Result]) -> str:
    if runs:
        minutes = sum(run["config"].get("minutes") or 0 for run in runs)
        messages = sum(run["messages"] for run in runs)
        faults = sum(sum(run["faults"].values()) for run in runs)
        wrong = [f"{_words(name)} {sum(run[name] for run in runs)}" for name in _WRONG]
        spent = f"{minutes / 60:.1f} hours" if minutes >= 60 else f"{minutes:.3g} min"
        told = f"{spent} of chaos, {messages} events, {faults} faults"
        return f"{HEAD}\n\n**{told}: {', '.join(wrong)}.**"
    return HEAD


def _section(section: Section, *parts: str) -> list[str]:
    again = f"`{section.command}` runs it again."
    return [f"## {section.title}", section.text, *parts, again]


def _chaos(runs: Sequence[Result]) -> list[str]:
    ordered = sorted(runs, key=lambda run: (run["config"]["database"], run["config"]["bus"]))
    rows = [
        {name: run["config"].get(name) for name in ("database", "bus", "seed", "minutes")}
        | {"events": run["messages"], "faults": sum(run["faults"].values())}
        | {name: run[name] for name in _WRONG}
        | {
            "sent again": f"{run['wire_duplicates']} ({run['wire_duplicates_percent']} %)",
            "per crash": run["duplicates_per_crash"],
            "other violations": sum(run["violations"].values()) - sum(run[n] for n in _WRONG),
            "commit": run["commit"],
        }
        for run in ordered
    ]
    return _section(
        CHAOS,
        _table(rows),
        RECOVERY,
        _faults(runs),
        f"Events that were not delivered, and why: {_kept_back(runs)}",
    )


def _faults(runs: Sequence[Result]) -> str:
    counts: Counter[str] = Counter()
    slowest: dict[str, dict[str, float]] = defaultdict(dict)
    for run in runs:
        counts.update(run["faults"])
        for kind, times in run["recovery_seconds"].items():
            for name in ("p50", "p95", "max"):
                slowest[kind][name] = max(times[name], slowest[kind].get(name, 0.0))
    rows = [
        {"fault": kind, "times": number}
        | {name: slowest[kind].get(name) for name in ("p50", "p95", "max")}
        for kind, number in sorted(counts.items())
    ]
    return _table(rows)


def _kept_back(runs: Sequence[Result]) -> str:
    reasons: Counter[str] = Counter()
    for run in runs:
        reasons.update({f"DEAD, {reason}": number for reason, number in run["dead"].items()})
        reasons.update({f"parked, {reason}": number for reason, number in run["parked"].items()})
    told = [f"{number} {reason}" for reason, number in sorted(reasons.items())]
    return f"{'; '.join(told)}." if told else "none."


def _planted(results: Sequence[Result]) -> list[str]:
    return [
        _table(
            [
                {
                    "bug": f"{each['id']}: {each['bug']}",
                    "found by": f"`{each['found_by']}`" if each["found_by"] else "**nobody**",
                    "seconds": each["seconds"],
                }
                for each in result["findings"]
            ]
        )
        for result in results
        if result.get("findings")
    ]


def _comparison(results: Sequence[Result]) -> list[str]:
    if not results:
        return []
    return _section(COMPARISON, *(_table(result["designs"]) for result in results))


def _figures(results: Sequence[Result]) -> str:
    """Return a table of whatever the layer counted: a row per result."""
    rows = [
        {name: _told(value) for name, value in result.items() if name not in (*_ABOUT, "findings")}
        | {"commit": result["commit"]}
        for result in results
    ]
    return _table(rows)


def _told(value: Any) -> Any:
    match value:
        case dict() if len(value) > _FEW and all(isinstance(n, int) for n in value.values()):
            return sum(value.values())
        case dict():
            return ", ".join(f"{name} {_told(each)}" for name, each in value.items())
        case list():
            return len(value)
        case _:
            return value


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "None."
    names = list(dict.fromkeys(name for row in rows for name in row))
    body = [[_cell(row.get(name)) for name in names] for row in rows]
    return "\n".join(
        [_line(_words(name) for name in names), _line("---" for _ in names), *map(_line, body)]
    )


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value).replace("|", "\\|")


def _words(name: str) -> str:
    return name.replace("_", " ")
