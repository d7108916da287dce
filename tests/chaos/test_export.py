"""The exported history is EDN in Elle's shape."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.chaos.export import edn
from tests.chaos.folders import clean_folder

_TOKEN = re.compile(r"[{}\[\]]|:[a-z]+|nil|-?\d+|[,\s]+|(?P<bad>.)")


def parse(text: str) -> Any:
    """Read one EDN form of maps, vectors, keywords, integers and nil."""
    stack: list[list[Any]] = [[]]
    for match in _TOKEN.finditer(text):
        token = match.group()
        assert match["bad"] is None, f"{token!r} in {text}"
        if token in ("[", "{"):
            stack.append([])
        elif token in ("]", "}"):
            items = stack.pop()
            pairs = zip(items[::2], items[1::2], strict=True) if token == "}" else None
            stack[-1].append(items if pairs is None else dict(pairs))
        elif token.strip(", "):
            value = None if token == "nil" else token
            stack[-1].append(int(token) if token.lstrip("-").isdigit() else value)
    [[form]] = stack
    return form


def test_history_is_edn_of_list_appends(tmp_path: Path) -> None:
    run = clean_folder()
    run.find("ledger", "north-k1-1")["tx"] = run.find("ledger", "north-k2-1")["tx"] = "both"
    operations = [parse(line) for line in edn(run.write(tmp_path))]

    assert list(range(len(operations))) == [each[":index"] for each in operations]
    assert {":txn"} == {each[":f"] for each in operations}
    for kind in (":invoke", ":ok"):
        processes = [each[":process"] for each in operations if each[":type"] == kind]
        assert len(set(processes)) == len(processes) == len(operations) / 2
    done = [each[":value"] for each in operations if each[":type"] == ":ok"]
    # north-big is 0, north-k1 1, north-k2 2, south-k1 3, south-k2 4, south-odd 5
    assert [[":append", 1, 1], [":append", 2, 1]] in done
    audit, books = done[-2:]
    assert [":r", 1, [1, 2, 3]] in audit
    assert [":r", 5, [1]] in audit
    assert [":r", 5, []] in books
    asked = [each[":value"] for each in operations if each[":type"] == ":invoke"]
    assert [":r", 1, None] in asked[-1]
