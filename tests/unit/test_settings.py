"""Settings of the projector, in code and from the environment."""

from __future__ import annotations

import math

import pytest

from semel.errors import ConfigurationError
from semel.retry import RetryPolicy
from semel.settings import OutboxProjectorConfig, TopicPolicy


def test_the_defaults_are_those_of_the_specification():
    """Seed 001 names five settings with their defaults."""
    config = OutboxProjectorConfig()
    assert (100, 5, 0.1, 2.0, "default") == (
        config.batch_size,
        config.max_retry_attempts,
        config.sleep_busy,
        config.sleep_idle,
        config.default_tenant_id,
    )


def test_settings_from_the_environment():
    """What is not set keeps its default; numbers and booleans are parsed."""
    config = OutboxProjectorConfig.from_env(
        environ={
            "SEMEL_OUTBOX_BATCH_SIZE": "7",
            "SEMEL_OUTBOX_SLEEP_IDLE": "0.5",
            "SEMEL_OUTBOX_KEEP_SENT": "no",
            "SEMEL_OUTBOX_ON_DEAD": "skip",
            "SEMEL_OUTBOX_DEFAULT_TENANT_ID": "acme",
            "OTHER_BATCH_SIZE": "8",
        }
    )
    assert config == OutboxProjectorConfig(
        batch_size=7, sleep_idle=0.5, keep_sent=False, on_dead="skip", default_tenant_id="acme"
    )


def test_another_prefix(monkeypatch: pytest.MonkeyPatch):
    """Two services in one environment have settings of their own."""
    monkeypatch.setenv("SHOP_BATCH_SIZE", "9")
    assert 9 == OutboxProjectorConfig.from_env("SHOP_").batch_size
    assert 100 == OutboxProjectorConfig.from_env().batch_size


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", True), ("TRUE", True), ("on", True), ("0", False), ("False", False), ("off", False)],
)
def test_booleans(text: str, value: bool):
    assert (
        value is OutboxProjectorConfig.from_env(environ={"SEMEL_OUTBOX_KEEP_SENT": text}).keep_sent
    )


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("BATCH_SIZE", "many", "SEMEL_OUTBOX_BATCH_SIZE must be a number, not 'many'"),
        ("BATCH_SIZE", "1.5", "SEMEL_OUTBOX_BATCH_SIZE must be a number"),
        ("BATCH_SIZE", "", "SEMEL_OUTBOX_BATCH_SIZE must be a number"),
        ("SLEEP_IDLE", "soon", "SEMEL_OUTBOX_SLEEP_IDLE must be a number"),
        ("SLEEP_IDLE", "nan", "sleep_idle must be more than 0"),
        ("KEEP_SENT", "maybe", "SEMEL_OUTBOX_KEEP_SENT must be true or false, not 'maybe'"),
        ("ON_DEAD", "ignore", "on_dead must be 'block' or 'skip'"),
    ],
)
def test_bad_variables_are_named(name: str, text: str, message: str):
    with pytest.raises(ConfigurationError, match=message):
        OutboxProjectorConfig.from_env(environ={f"SEMEL_OUTBOX_{name}": text})


@pytest.mark.parametrize(
    "bad",
    [
        {"batch_size": 0},
        {"concurrency": 0},
        {"lease_seconds": 0.9},
        {"lease_seconds": math.nan},
        {"lease_seconds": math.inf},
        {"sleep_busy": 0.0},
        {"sleep_idle": -1.0},
        {"sweep_seconds": math.nan},
        {"publish_timeout_seconds": 0.0},
        {"breaker_max_seconds": 0.0},
        {"breaker_alert_seconds": -1.0},
        {"max_retry_attempts": 0},
        {"retry_base_seconds": 10.0, "retry_max_seconds": 1.0},
        {"on_dead": "ignore"},
        {"topics": {"orders": TopicPolicy(on_dead="ignore")}},  # type: ignore[arg-type]
    ],
)
def test_values_that_cannot_work_are_refused(bad: dict[str, float]):
    with pytest.raises(ConfigurationError):
        OutboxProjectorConfig(**bad)  # type: ignore[arg-type]


def test_policies_of_topics():
    """A topic may have its own retries and its own answer to a DEAD event."""
    patient = RetryPolicy(max_attempts=50)
    config = OutboxProjectorConfig(
        max_retry_attempts=3,
        topics={"patient": TopicPolicy(retry=patient), "loose": TopicPolicy(on_dead="skip")},
    )
    assert patient is config.retry_for("patient")
    assert 3 == config.retry_for("loose").max_attempts == config.retry_for("other").max_attempts
    assert config.blocks("patient")
    assert config.blocks("other")
    assert not config.blocks("loose")
    assert OutboxProjectorConfig(
        on_dead="skip", topics={"strict": TopicPolicy(on_dead="block")}
    ).blocks("strict")
