"""A service's own Alembic beside semel's revisions, and with them in it."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import inspect, make_url, text

from semel.sqlalchemy.layout import SCHEMA_VERSION
from semel.sqlalchemy.migrations import VERSION_TABLE, revision_of
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.sqlalchemy.tables import metadata
from tests.services import Database
from tests.stores.shop import SYNC_DRIVERS

pytestmark = pytest.mark.slow  # each call of Alembic is a process of its own
ROOT = Path(__file__).parents[2]
MODELS = """
from sqlalchemy import Column, Integer, MetaData, String, Table

metadata = MetaData()
orders = Table("orders", metadata, Column("id", Integer, primary_key=True))
orders.append_column(Column("state", String(20)))
"""


class Project:
    """A folder as `alembic init` makes it, and the edits that the guide tells."""

    def __init__(self, folder: Path, database: Database) -> None:
        self.folder = folder
        url = make_url(database.url).set(drivername=SYNC_DRIVERS[database.name])
        self._url = url.render_as_string(hide_password=False)
        self.run("init", "migrations")
        (folder / "models.py").write_text(MODELS)
        self.edit("alembic.ini", r"^sqlalchemy.url = .*$", f"sqlalchemy.url = {self._url}")
        self.edit(
            "migrations/env.py",
            r"^target_metadata = None$",
            "from models import metadata as target_metadata\n"
            "from semel.sqlalchemy.migrations import include_name",
        )

    def edit(self, name: str, pattern: str, replacement: str) -> None:
        path = self.folder / name
        changed, count = re.subn(
            pattern, lambda _: replacement, path.read_text(), flags=re.MULTILINE
        )
        assert count, f"{name} has no {pattern}"
        path.write_text(changed)

    def leave_semel_alone(self) -> None:
        self.edit(
            "migrations/env.py",
            r"target_metadata=target_metadata,?$",
            "target_metadata=target_metadata, include_name=include_name,",
        )

    def include_semel(self) -> None:
        """Put semel's revisions into this history."""
        self.edit("alembic.ini", r"^path_separator = os$", "path_separator = newline")
        self.edit(
            "alembic.ini",
            r"^# version_locations = .*$",
            "version_locations =\n"
            "    %(here)s/migrations/versions\n"
            "    semel.sqlalchemy.migrations:versions",
        )
        self.edit("alembic.ini", r"^prepend_sys_path = .*$", "prepend_sys_path = %(here)s")

    def run(self, *arguments: str, fails: bool = False) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "alembic", *arguments],
            cwd=self.folder,
            env={"PYTHONPATH": f"{ROOT / 'src'}:{self.folder}", "PATH": ""},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert fails == bool(done.returncode), done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture
def project(database: Database, tmp_path: Path) -> Project:
    folder = tmp_path / "service"
    folder.mkdir()
    return Project(folder, database)


ONE_DRIVER = pytest.mark.parametrize("database", ["sqlite", "postgres", "mariadb"], indirect=True)


async def tables(storage: SqlAlchemyStorage) -> set[str]:
    async with storage.engine.connect() as connection:
        return set(await connection.run_sync(lambda sync: inspect(sync).get_table_names()))


@ONE_DRIVER
async def test_beside_the_service_s_own_alembic(database: Database, project: Project) -> None:
    """Two histories, two version tables; autogenerate sees the service's tables only."""
    async with SqlAlchemyStorage(database.url) as storage:
        await storage.upgrade()
        told = await asyncio.to_thread(project.run, "revision", "--autogenerate", "-m", "first")
        assert "removed table 'outbox'" in told, "the danger that the helper is for"
        for path in (project.folder / "migrations/versions").glob("*.py"):
            path.unlink()

        project.leave_semel_alone()
        await asyncio.to_thread(project.run, "revision", "--autogenerate", "-m", "first")
        [script] = (project.folder / "migrations/versions").glob("*.py")
        upgrade = script.read_text().partition("def downgrade")[0]
        assert "create_table('orders'" in upgrade
        assert "drop_" not in upgrade
        await asyncio.to_thread(project.run, "upgrade", "head")
        assert "No new upgrade operations" in await asyncio.to_thread(project.run, "check")

        await storage.check()
        expected = {*metadata.tables, VERSION_TABLE, "alembic_version", "orders"}
        assert expected == {name for name in await tables(storage) if "sqlite_" not in name}
        await asyncio.to_thread(project.run, "downgrade", "base")
        assert expected - {"orders"} == await tables(storage)
        await storage.upgrade()
        await storage.check()


@pytest.mark.parametrize(
    ("database", "made"),
    [
        ("sqlite", "by Alembic"),
        ("sqlite", "by create"),
        ("sqlite", "by upgrade"),
        ("postgres", "by Alembic"),
        ("mariadb", "by Alembic"),
    ],
    indirect=["database"],
)
async def test_in_the_service_s_own_alembic(
    database: Database, project: Project, made: str
) -> None:
    """One history with two branches, whoever made the tables first."""
    project.leave_semel_alone()
    project.include_semel()
    versions = str(project.folder / "migrations/versions")
    async with SqlAlchemyStorage(database.url) as storage:
        if made == "by create":
            await storage.initialize()
        elif made == "by upgrade":
            await storage.upgrade()
        await asyncio.to_thread(
            project.run,
            *("revision", "-m", "first", "--head", "base", "--branch-label", "service"),
            *("--version-path", versions),
        )
        await asyncio.to_thread(project.run, "upgrade", "heads")
        await asyncio.to_thread(
            project.run, "revision", "--autogenerate", "-m", "orders", "--head", "service@head"
        )
        await asyncio.to_thread(project.run, "upgrade", "heads")
        assert "No new upgrade operations" in await asyncio.to_thread(project.run, "check")
        assert f"{revision_of(SCHEMA_VERSION)} (head)" in await asyncio.to_thread(
            project.run, "current"
        )
        await storage.check()
        assert {"orders", "outbox"} <= await tables(storage)

        # One who does not know of it may still upgrade semel's tables by themselves.
        await storage.upgrade()

        async with storage.unit_of_work() as uow:
            await uow.outbox.add("orders", 1)
            await uow.commit()
        told = await asyncio.to_thread(project.run, "downgrade", "semel@base", fails=True)
        assert "1 events of the outbox are not sent" in told
        assert "outbox" in await tables(storage)
        async with storage.engine.begin() as connection:
            await connection.execute(text("DELETE FROM outbox"))
        await asyncio.to_thread(project.run, "downgrade", "semel@base")
        assert not set(metadata.tables) & await tables(storage)
        assert "orders" in await tables(storage)
