"""Other libraries, each in an environment of its own, driven as its documentation says."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.databases import database, dsn
from benchmarks.peers.setup import PEERS, command_of
from benchmarks.runner import Absent, Answer, Bench, Measure, Sides, pick

_FOLDER = Path(__file__).parent
_SECONDS = 600.0


def sides(bench: Bench, verb: str, **options: Any) -> dict[str, Measure]:
    """A side per peer that knows *verb*; none unless peers were asked for."""
    if not bench.peers:
        return {}
    return {
        peer.name: partial(_drive, bench, peer.name, verb, options)
        for peer in PEERS
        if verb in peer.verbs
    }


async def _drive(
    bench: Bench, name: str, verb: str, options: Mapping[str, Any]
) -> Mapping[str, float]:
    """Run a peer's driver on a fresh database; it prints its figures by name as JSON."""
    with database(bench) as url:
        process = await asyncio.create_subprocess_exec(
            *command_of(name),
            verb,
            json.dumps(options),
            cwd=_FOLDER,
            env={**os.environ, "BENCH_DSN": dsn(url)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(_SECONDS):
                out, errors = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            raise Absent(f"did not end within {_SECONDS:.0f} s") from None
    if process.returncode:
        lines = errors.decode(errors="replace").strip().splitlines() or ["no message"]
        raise Absent(f"ended with {process.returncode}: {lines[-1][:200]}")
    figures: Mapping[str, float] = json.loads(out.decode().strip().splitlines()[-1])
    return figures


def names_of(sides: Sides) -> list[str]:
    """The sides that are peers."""
    known = tuple(peer.name for peer in PEERS)
    return [name for name in sides if name.startswith(known)]


def answer_beside(  # noqa: PLR0917  as `Bench.answer`
    bench: Bench, question: str, title: str, sides: Sides, measured: str, target: float
) -> None:
    """Keep the figure of *measured* relative to the best peer's, if peers were asked for."""
    found = names_of(sides)
    if not bench.peers:
        return
    best = max(found, key=lambda name: sides[name].median, default=None)
    bench.keep(
        Answer(
            question=question,
            title=f"{title}: beside the best peer",
            sides=pick(sides, measured, *found),
            measured=measured,
            against=best or "the best peer",
            ratio=None if best is None else sides[measured].median / sides[best].median,
            target=target,
        )
    )
