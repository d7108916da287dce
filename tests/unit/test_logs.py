"""Log lines as JSON: the fields that help, and nothing else of a record."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from semel.envelope import MessageEnvelope
from semel.logs import FIELDS, JsonFormatter, fields


def line(text: str, *arguments: object, **extra: Any) -> dict[str, Any]:
    logger = logging.getLogger("semel.test")
    record = logger.makeRecord(
        logger.name, logging.ERROR, __file__, 1, text, arguments, None, extra=extra
    )
    shown = JsonFormatter().format(record)
    assert "\n" not in shown
    return dict(json.loads(shown))


def test_fields_of_a_message() -> None:
    """Who, where and how it ended, as fields of their own; never the payload."""
    message = MessageEnvelope(
        topic="orders", payload={"card": "4111"}, event_id="e-1", tenant_id="acme"
    )
    shown = line("given up", **fields(message, consumer="billing", outcome="dead", attempts=3))
    assert shown.pop("time").endswith("+00:00")
    assert {
        "level": "ERROR",
        "logger": "semel.test",
        "message": "given up",
        "event_id": "e-1",
        "event_type": "orders",
        "topic": "orders",
        "tenant": "acme",
        "consumer": "billing",
        "outcome": "dead",
        "attempts": 3,
    } == shown
    assert set(fields(message, consumer="", outcome="", attempts=0)) == set(FIELDS)
    assert {"consumer": "billing"} == fields(consumer="billing")


def test_what_is_no_field_is_not_shown() -> None:
    assert "payload" not in line("hello", payload={"card": "4111"})


def test_lines_stay_lines_and_secrets_stay_secret() -> None:
    shown = line("lost %s\nfor %s", "amqp://user:CANARY@host", "é")
    assert "lost amqp://***@host\nfor é" == shown["message"]


def test_exceptions_are_redacted() -> None:
    logger = logging.getLogger("semel.test")
    try:
        raise RuntimeError("password=CANARY")
    except RuntimeError:
        record = logger.makeRecord(
            logger.name, logging.ERROR, __file__, 1, "failed", (), sys.exc_info()
        )
    shown = JsonFormatter().format(record)
    assert "RuntimeError" in json.loads(shown)["exception"]
    assert "CANARY" not in shown
