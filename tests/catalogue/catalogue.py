"""Everything that may go wrong, what happens then, and which tests show it.

The rows are in the TOML files beside this one, a file per part of the system:

    [P01]
    failure = "what goes wrong"
    behaviour = "what happens then"
    tests = ["tests/stores/test_write_path.py::test_..."]
    gap = "what no test here covers, and why"      # only where there is something to say
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
PAGE = ROOT / "docs" / "reliability" / "failure-modes.md"

#: The parts, and how many rows each must have.
SECTIONS = {
    "producer": ("Writing the outbox", {"P": 15}),
    "relay": ("The relay", {"R": 34}),
    "brokers": ("Brokers", {"B": 13}),
    "consumer": ("Consumers and the inbox", {"C": 31}),
    "idempotency": ("Idempotency", {"I": 20}),
    "database": ("Databases", {"D": 18}),
    "operations": ("Operations and tenants", {"O": 8, "T": 5}),
    "security": ("Security", {"SEC": 20}),
}
SECURITY = "security"
_CONTRACTS = ROOT / "src" / "semel" / "testing" / "contracts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One failure mode, or one rule of security."""

    id: str
    failure: str
    behaviour: str
    tests: Sequence[str] = ()
    gap: str = ""


def load() -> Mapping[str, Sequence[Row]]:
    """Return the rows by section."""
    return {
        name: [
            Row(id=key, **values)
            for key, values in tomllib.loads((HERE / f"{name}.toml").read_text()).items()
        ]
        for name in SECTIONS
    }


def expected_ids(section: str) -> list[str]:
    """Return the ids that a section must have, in order."""
    letters = SECTIONS[section][1]
    return [
        f"{name}{number:02d}" for name, count in letters.items() for number in range(1, count + 1)
    ]


def exists(node: str) -> bool:
    """Tell whether a test has this node id, without collecting anything.

    Methods may be inherited from a contract: `tests/stores/test_inbox.py::TestInbox::test_x`.
    """
    path, *names = node.split("::")
    if not path.startswith("tests/") or not names or not names[-1].startswith("test_"):
        return False
    file = ROOT / path
    if not file.is_file():
        return False
    found = _tests(file)
    if len(names) == 1:
        return names[0] in found.functions
    return len(names) == 2 and names[1] in _methods(names[0], found.classes)


@dataclass(frozen=True, slots=True)
class _File:
    functions: frozenset[str]
    classes: Mapping[str, tuple[frozenset[str], tuple[str, ...]]]


@cache
def _tests(file: Path) -> _File:
    tree = ast.parse(file.read_text())
    classes = {
        node.name: (_functions(node.body), tuple(ast.unparse(base) for base in node.bases))
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }
    return _File(_functions(tree.body), classes)


def _functions(body: Sequence[ast.stmt]) -> frozenset[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in body if isinstance(node, kinds))


@cache
def _contracts() -> Mapping[str, tuple[frozenset[str], tuple[str, ...]]]:
    found: dict[str, tuple[frozenset[str], tuple[str, ...]]] = {}
    for file in _CONTRACTS.glob("*.py"):
        found |= _tests(file).classes
    return found


def _methods(
    name: str, own: Mapping[str, tuple[frozenset[str], tuple[str, ...]]]
) -> frozenset[str]:
    methods, bases = own.get(name) or _contracts().get(name) or (frozenset(), ())
    return methods.union(*(_methods(base, own) for base in bases if base != name))
