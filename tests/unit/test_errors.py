"""No error text may give away a secret: canaries go in, and must not come out."""

import time

import pytest

from semel import errors
from semel.errors import (
    ConfigurationError,
    PublishError,
    SemelError,
    describe,
    missing_extra,
    redact,
)

CANARY = "s3cr3t-canary"


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql+asyncpg://user:{CANARY}@db.example.com/shop",
        f"cannot connect to amqp://user:{CANARY}@mq:5672/%2f, retrying",
        f"redis://:{CANARY}@cache:6379/0",
        f"amqp://user:p@ss/{CANARY}@mq",
        f"amqp://user:{CANARY}/x@mq",
        f"host=db user=shop password={CANARY} dbname=shop",
        f"PGPASSWORD={CANARY} psql",
        f'{{"password": "{CANARY}", "user": "shop"}}',
        f"{{'sasl.password': '{CANARY} with spaces {CANARY}'}}",
        f"password : {CANARY}",
        f"pwd={CANARY};Server=db",
        f"client_secret={CANARY}&grant_type=x",
        f"SECRET_KEY={CANARY}",
        f"access_token={CANARY}",
        f"api_key: {CANARY}",
        f"Authorization: Bearer {CANARY}",
        f"authorization: basic {CANARY}==",
        f"token eyJhbGciOiJIUzI1NiJ9.{CANARY}.c2lnbmF0dXJl",
    ],
)
def test_redact(text):
    """Passwords, tokens and credentials in addresses disappear."""
    assert CANARY not in redact(text)
    assert CANARY not in describe(RuntimeError(text))


@pytest.mark.parametrize(
    "text",
    [
        "relation 'outbox' does not exist",
        "kafka://broker:9092 refused the connection",
        "message 0190f2c4 of alice@example.com was refused",
        "the basic idea",
    ],
)
def test_redact_leaves_the_rest(text):
    """Text without secrets stays readable."""
    assert text == redact(text)


def test_redact_keeps_the_host():
    """What helps to find the fault stays."""
    assert redact("amqp://u:p@mq:5672/shop") == "amqp://***@mq:5672/shop"


@pytest.mark.parametrize(
    "text", ["a" * 200_000, "a:" * 100_000, "password" * 20_000, "://" * 50_000]
)
def test_redact_is_fast(text):
    """A long line costs no more than its length."""
    began = time.monotonic()
    redact(text)
    assert time.monotonic() - began < 2


def test_describe():
    """The type and the first line, no more."""
    error = ValueError("duplicate key\nDETAIL: Key (email)=(alice@example.com) exists.")
    assert describe(error) == "ValueError: duplicate key"
    assert describe(ValueError()) == "ValueError"
    assert describe(ValueError("  \n ")) == "ValueError"


def test_describe_is_short():
    """The text fits into its column, and says that it was cut."""
    text = describe(ValueError("x" * 1_000_000), limit=100)
    assert len(text) == 100
    assert text.endswith("…")


def test_describe_can_be_stored():
    """Neither control characters nor lone surrogates reach the database or a terminal."""
    text = describe(ValueError("a\x00b\x1b[31mc\ud800d"))
    assert text == "ValueError: ab[31mc?d"


def test_publish_error_kind():
    """A rejection may pass later unless it says otherwise."""
    assert PublishError("x").kind == "transient"
    assert PublishError("x", kind="permanent").kind == "permanent"


def test_one_tree():
    """Every error of the module is a SemelError with a docstring, and the tree shows it."""
    classes = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, BaseException)
    ]
    assert len(classes) > 15
    for error in classes:
        assert issubclass(error, SemelError)
        assert error.__doc__
        assert error.__name__ in (errors.__doc__ or "")


def test_missing_extra():
    """The text holds the line to copy."""
    error = ConfigurationError(missing_extra("kafka://", "kafka"))
    assert str(error) == "kafka:// needs an optional dependency: pip install 'semel[kafka]'"
