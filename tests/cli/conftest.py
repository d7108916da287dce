"""The command line on a fresh database, in this process or in one of its own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from typer.testing import CliRunner, Result

from semel.cli.app import app
from semel.sqlalchemy.storage import SqlAlchemyStorage
from tests.services import Database

T = TypeVar("T")
SOURCE = Path(__file__).parents[2] / "src"

both = pytest.mark.parametrize("database", ["sqlite", "postgres"], indirect=True)


@dataclass(frozen=True, slots=True)
class Cli:
    """Calls commands; the address of the database comes by the environment."""

    url: str
    folder: Path

    def __call__(self, *arguments: str, input: str | None = None, **env: str | None) -> Result:  # noqa: A002
        """Run a command in this process."""
        return CliRunner().invoke(
            app, list(arguments), input=input, env={**self.environment, **env}
        )

    def json(self, *arguments: str, code: int = 0) -> Any:
        """Return what `--json` printed."""
        done = self(*arguments, "--json")
        assert code == done.exit_code, done.output
        return json.loads(done.stdout)

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Run a command in a process of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "semel", *arguments],
            env={**os.environ, **self.environment, "PYTHONPATH": str(SOURCE), "PYTHONUTF8": "1"},
            cwd=self.folder,
            text=True,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
        )

    def run(self, *arguments: str, seconds: float = 100) -> subprocess.CompletedProcess[str]:
        """Run a command in a process of its own to its end."""
        process = self.start(*arguments)
        out, err = process.communicate(timeout=seconds)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def do(self, work: Callable[[SqlAlchemyStorage], Awaitable[T]]) -> T:
        """Do something on the database behind the command line's back."""

        async def inside() -> T:
            async with SqlAlchemyStorage(self.url) as storage:
                return await work(storage)

        return asyncio.run(inside())

    @property
    def environment(self) -> dict[str, str]:
        return {"SEMEL_DATABASE_URL": self.url, "SEMEL_ACTOR": "tester"}


@pytest.fixture
def empty(database: Database, tmp_path: Path) -> Cli:
    """The command line on a database without tables."""
    return Cli(database.url, tmp_path)


@pytest.fixture
def cli(empty: Cli) -> Cli:
    """The command line on a database with empty tables."""
    empty.do(lambda storage: storage.initialize())
    return empty
