"""The public surface: what is exported, and what importing it costs."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import semel

EXTRAS = [
    "aio_pika",
    "aiosqlite",
    "alembic",
    "asyncmy",
    "asyncpg",
    "confluent_kafka",
    "fastavro",
    "msgspec",
    "nats",
    "opentelemetry",
    "orjson",
    "prometheus_client",
    "psycopg",
    "pulsar",
    "pydantic",
    "pytest",
    "redis",
    "rich",
    "typer",
]


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )


def test_all_is_the_whole_surface() -> None:
    """Every public name is listed once, has a home, and is known to type checkers from there."""
    source = ast.parse(Path(semel.__file__).read_text(encoding="utf-8"))
    imported = {
        alias.name: found.module
        for found in ast.walk(source)
        if isinstance(found, ast.ImportFrom) and str(found.module).startswith("semel.")
        for alias in found.names
    }

    assert imported == semel._HOMES
    assert set(semel.__all__) == set(imported)
    assert len(semel.__all__) == len(set(semel.__all__))


@pytest.mark.parametrize("name", semel.__all__)
def test_each_name_is_that_of_its_home(name: str) -> None:
    """However it is asked for, a name is one object."""
    value = getattr(semel, name)

    assert value is getattr(import_module(semel._HOMES[name]), name)
    assert value is getattr(semel, name)
    if isinstance(value, type):
        assert value is pickle.loads(pickle.dumps(value))


def test_import_loads_nothing() -> None:
    """What is not asked for is not loaded, and can be seen and imported all the same."""
    done = python(
        "import sys, semel\n"
        "print([name for name in sys.modules if name.startswith('semel.')])\n"
        "print('sqlalchemy' in sys.modules, 'asyncio' in sys.modules)\n"
        "print(set(semel.__all__) <= set(dir(semel)))\n"
        "from semel import *\n"
        "print(OutboxProjector.__name__, 'sqlalchemy' in sys.modules)\n"
    )

    assert 0 == done.returncode, done.stderr
    assert ["[]", "False False", "True", "OutboxProjector True"] == done.stdout.splitlines()


def test_only_what_is_asked_for_is_loaded() -> None:
    """A producer loads neither web framework nor broker, nor the web parts of semel."""
    done = python(
        "import sys\n"
        "from semel import OutboxProjector, SqlAlchemyStorage\n"
        "print([name for name in ('starlette', 'fastapi', 'semel.asgi', 'semel.hub',"
        " 'semel.transports') if name in sys.modules])\n"
    )

    assert 0 == done.returncode, done.stderr
    assert "[]" == done.stdout.strip()


def test_a_name_that_is_not_there() -> None:
    """An unknown name fails as it does in any module."""
    with pytest.raises(AttributeError, match="module 'semel' has no attribute 'Inbx'"):
        semel.Inbx  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'Inbx' from 'semel'"):
        exec("from semel import Inbx", {})


def test_import_needs_no_extra() -> None:
    """With nothing but SQLAlchemy installed, `import semel` works."""
    blocked = "import sys\n" + "".join(f"sys.modules[{name!r}] = None\n" for name in EXTRAS)
    done = python(blocked + "from semel import *\nimport semel; print(len(semel.__all__))")

    assert 0 == done.returncode, done.stderr
    assert str(len(semel.__all__)) == done.stdout.strip()


@pytest.mark.parametrize(
    ("module", "blocked", "extra"),
    [
        ("semel.transports.kafka", "confluent_kafka", "kafka"),
        ("semel.transports.rabbitmq", "aio_pika", "rabbitmq"),
        ("semel.transports.pulsar", "pulsar", "pulsar"),
        ("semel.transports.nats", "nats", "nats"),
        ("semel.transports.redis", "redis", "redis"),
        ("semel.prometheus", "prometheus_client", "prometheus"),
        ("semel.opentelemetry", "opentelemetry", "opentelemetry"),
    ],
)
def test_missing_extra_is_named(module: str, blocked: str, extra: str) -> None:
    """A module without its library says what to install."""
    done = python(f"import sys\nsys.modules[{blocked!r}] = None\nimport {module}")

    assert 0 != done.returncode
    assert f"pip install 'semel[{extra}]'" in done.stderr


def test_command_line_without_its_extra() -> None:
    """`semel` says what to install if Typer is not there."""
    done = python("import sys\nsys.modules['typer'] = None\nfrom semel.cli import main\nmain()")

    assert 0 != done.returncode
    assert "pip install 'semel[cli]'" in done.stderr
