"""URLs and settings: accepted, or a `ConfigurationError` that tells no password."""

from __future__ import annotations

from dataclasses import asdict
from math import inf
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from semel.errors import ConfigurationError, SemelError
from semel.settings import OutboxProjectorConfig
from semel.sqlalchemy.storage import SqlAlchemyStorage
from semel.transports import bus_from_url
from tests.fuzz.hostile import CANARY, fuzz, tells_nothing, texts

parts = st.one_of(
    texts,
    st.sampled_from(
        [
            *("host", "[::1]", "[", "[::", "]", "a,b", "host:", ":1", "127.0.0.1", "%", "%ff", "@"),
            *("user", "user:pw@", f"u:{CANARY}@", f"{CANARY}@", f":{CANARY}@", "a:b:c@d@"),
        ]
    ),
)
ports = st.one_of(
    st.just(""),
    st.sampled_from([":0", ":1", ":65536", ":99999999999999999999", ":-1", ":x", ":٣", ":é"]),
)
tails = st.one_of(
    st.just(""),
    texts.map(lambda text: f"/{text}"),
    st.sampled_from(
        ["/0", "/x", "//", "?", "?a", "?a=b", "?db=x", "#", "?ssl=maybe", "/%00", "?timeout=nan"]
    ),
)
schemes = (
    *("memory", "kafka", "amqp", "amqps", "pulsar", "pulsar+ssl", "nats", "tls", "redis", "rediss"),
    *("database", "http", "", "KAFKA", "database+sqlite+aiosqlite", "database+postgresql+asyncpg"),
)
databases = (
    *("sqlite+aiosqlite", "sqlite", "postgresql+asyncpg", "postgresql+psycopg", "postgresql"),
    *("mysql+asyncmy", "mysql", "oracle", "mssql+x", "", "a+b+c"),
)


def written(given: tuple[str, str, str, str]) -> str:
    scheme, authority, port, tail = given
    return f"{scheme}://u:{CANARY}@{authority}{port}{tail}"


@given(given=st.tuples(st.sampled_from(schemes), parts, ports, tails))
@example(given=("kafka", "[", "", ""))
@example(given=("redis", "host", ":65536", ""))
@fuzz(250)
def test_a_bus_of_any_url(given: tuple[str, str, str, str]) -> None:
    """Nothing connects before it is started: a URL is good, or refused with what to write."""
    try:
        bus_from_url(written(given))
    except SemelError as error:
        tells_nothing(error)


@given(given=st.tuples(st.sampled_from(databases), parts, ports, tails))
@example(given=("postgresql+asyncpg", "host", ":99999", "/x?ssl=x"))
@fuzz(200)
async def test_a_database_of_any_url(given: tuple[str, str, str, str]) -> None:
    try:
        storage = SqlAlchemyStorage(written(given))
    except SemelError as error:
        tells_nothing(error)
        return
    assert CANARY not in repr(storage.engine)
    await storage.close()


NAMES = [f"SEMEL_OUTBOX_{name.upper()}" for name in OutboxProjectorConfig.__dataclass_fields__]
ODD = (
    *("0", "-1", "1", "1e400", "nan", "inf", "-inf", "1_0", "٣", " 5 ", "9" * 5000, "", "\x00"),
    *("true", "TRUE", "maybe", "block", "skip", "0x10", "1e-320", "1.5", "x" * 9000, "a\nb", "😀"),
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", ODD, ids=lambda text: repr(text[:8]))
def test_settings_from_any_environment(name: str, text: str) -> None:
    """What is accepted can be used: no time in it is infinite, or not a number."""
    try:
        config = OutboxProjectorConfig.from_env(environ={name: text})
    except ConfigurationError as error:
        tells_nothing(error)
        return
    retry = config.retry_for("orders")
    times = [value for value in asdict(config).values() if isinstance(value, float)]
    for seconds in (*times, retry.delay(3), retry.delay(10**6), retry.horizon()):
        assert 0 <= seconds < inf
    assert config.blocks("orders") in (True, False)


@pytest.mark.parametrize("url", [None, 1, b"kafka://h", ["kafka://h"]])
def test_a_url_of_another_type(url: Any) -> None:
    for make in (bus_from_url, SqlAlchemyStorage):
        with pytest.raises(ConfigurationError):
            make(url)
