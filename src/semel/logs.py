"""Log records as lines of JSON."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

from semel.envelope import MessageEnvelope
from semel.errors import redact

#: What semel's own records carry in `extra=`, where it applies; nothing else of a record is shown.
FIELDS = ("event_id", "event_type", "topic", "tenant", "consumer", "outcome", "attempts")


def fields(message: MessageEnvelope | None = None, **more: str | int) -> dict[str, str | int]:
    """Return the `extra=` of a record about *message*."""
    if message is None:
        return more
    return {
        "event_id": message.event_id,
        "event_type": message.event_type,
        "topic": message.topic,
        "tenant": message.tenant_id,
        **more,
    }


class JsonFormatter(logging.Formatter):
    """One object per line: time, level, logger, message, and the fields of `FIELDS`.

    Passwords and tokens are taken out of texts. Payloads are never logged.

    >>> handler = logging.StreamHandler()
    >>> handler.setFormatter(JsonFormatter())
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return *record* as one line."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": redact(record.getMessage()),
        }
        line |= {name: record.__dict__[name] for name in FIELDS if name in record.__dict__}
        if record.exc_info:
            line["exception"] = redact(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False, default=str)
