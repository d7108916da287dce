"""What the history of a run tells beside the tables."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

_WARM = 3.0

Lines = list[dict[str, Any]]


def wire(history: Lines) -> tuple[dict[str, int], int]:
    """Count how often each id may have gone out, and how many outcomes were unknown."""
    calls: Counter[str] = Counter()
    unknown = 0
    for line in history:
        if line["f"] != "publish":
            continue
        if line["type"] == "invoke":
            calls.update(line["value"]["ids"])
        else:
            outcomes = line["value"]["outcomes"]
            calls.subtract(each for each, outcome in outcomes.items() if outcome == "fail")
            unknown += sum(outcome == "info" for outcome in outcomes.values())
    return {each: number for each, number in calls.items() if number > 0}, unknown


def marks(history: Lines) -> dict[tuple[str, int], set[int]]:
    """By event and attempts: under which epochs relays believe to have stored a failure."""
    found: dict[tuple[str, int], set[int]] = defaultdict(set)
    for line in history:
        for event_id, attempts, epoch in line["value"] if line["f"] == "mark" else ():
            found[event_id, attempts].add(epoch)
    return found


def resources(history: Lines) -> dict[str, dict[str, list[int]]]:
    """The first and the last sample of each process that lived to the end, once it was warm."""
    last = {
        line["proc"].partition("#")[0]: line["proc"] for line in history if line["f"] == "ready"
    }
    ready: dict[str, float] = {line["proc"]: line["t"] for line in history if line["f"] == "ready"}
    samples: dict[str, list[dict[str, int]]] = defaultdict(list)
    for line in history:
        since = ready.get(line["proc"])
        if line["f"] == "resources" and since is not None and line["t"] > since + _WARM:
            samples[line["proc"]].append(line["value"])
    return {
        proc: {name: [found[0][name], found[-1][name]] for name in found[0]}
        for proc, found in samples.items()
        if proc in last.values() and len(found) > 1
    }
