"""`make bench`: each question's answer beside its limit, measured in the same run."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
from pathlib import Path

from benchmarks.idempotency import requests_with_keys
from benchmarks.relay import Result, relay_to_a_sink, write_with_events

RESULTS = Path(__file__).parent / "results" / "latest.json"


def _database() -> str:
    url = os.environ.get("SEMEL_TEST_POSTGRES_URL")
    if not url:
        sys.exit(
            "no PostgreSQL: run `make bench`, which starts one, or set SEMEL_TEST_POSTGRES_URL"
        )
    return url.replace("postgresql://", "postgresql+asyncpg://", 1)


async def _run() -> list[Result]:
    url = _database()
    return [
        await relay_to_a_sink(url),
        await write_with_events(url),
        await requests_with_keys(url),
    ]


def main() -> None:
    """Run everything, print a table, keep the figures."""
    results = asyncio.run(_run())
    for result in results:
        sys.stdout.write(f"\n{result.question}\n")
        for side, figures in result.sides.items():
            middle, spread = statistics.median(figures), max(figures) - min(figures)
            sys.stdout.write(f"  {side:<24}{middle:>12,.0f}/s   spread {spread:,.0f}\n")
        sys.stdout.write(f"  ratio {result.ratio:.2f} (target {result.target})\n")
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps([result.as_dict() for result in results], indent=2) + "\n")


main()
