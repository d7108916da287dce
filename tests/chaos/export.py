"""A run as an EDN history of list appends, so that anybody can check it again with elle-cli.

Each business transaction appends its versions to the lists of its keys; at the end each group reads
all lists as its effects have them. `python -m tests.chaos export FOLDER > history.edn`, then
`java -jar elle-cli.jar --model list-append history.edn`.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.chaos.checker_run import Run


def edn(folder: Path | str) -> Iterator[str]:
    """Return the lines of the history; keys are numbered, as Elle likes them."""
    run = Run(Path(folder))
    numbers = {key: number for number, key in enumerate(sorted(run.keys))}
    transactions: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (tenant, key), rows in run.keys.items():
        for row in rows:
            append = f"[:append {numbers[tenant, key]} {row['version']}]"
            transactions[tenant, str(row["tx"])].append(append)
    # Writers overlap: only the reads, at rest, come after all of them.
    writes = [f"[{' '.join(appends)}]" for appends in transactions.values()]
    steps = [("invoke", process, value) for process, value in enumerate(writes)]
    steps += [("ok", process, value) for process, value in enumerate(writes)]
    for process, group in enumerate(sorted(run.groups), len(writes)):
        lists: dict[int, list[int]] = {number: [] for number in numbers.values()}
        for row in run.effects:
            if row["group"] == group and (row["tenant"], row["key"]) in numbers:
                lists[numbers[row["tenant"], row["key"]]].append(row["version"])
        asked = " ".join(f"[:r {number} nil]" for number in lists)
        read = " ".join(f"[:r {key} [{' '.join(map(str, each))}]]" for key, each in lists.items())
        steps += [("invoke", process, f"[{asked}]"), ("ok", process, f"[{read}]")]
    for index, (kind, process, value) in enumerate(steps):
        yield f"{{:index {index}, :type :{kind}, :process {process}, :f :txn, :value {value}}}"


def main(arguments: Sequence[str]) -> int:
    """Print the history of the folder that is named."""
    if len(arguments) != 1:
        print("usage: python -m tests.chaos export FOLDER", file=sys.stderr)
        return 2
    for line in edn(arguments[0]):
        print(line)
    return 0
