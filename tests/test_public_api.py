"""The public surface: what is exported, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys

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
    """Every public name is listed, exists, and is listed once."""
    public = {
        name
        for name, value in vars(semel).items()
        if not name.startswith("_") and not isinstance(value, type(sys))
    }

    assert set(semel.__all__) == public
    assert len(semel.__all__) == len(set(semel.__all__))


def test_import_needs_no_extra() -> None:
    """With nothing but SQLAlchemy installed, `import semel` works."""
    blocked = "import sys\n" + "".join(f"sys.modules[{name!r}] = None\n" for name in EXTRAS)
    done = python(blocked + "import semel\nprint(len(semel.__all__))")

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
