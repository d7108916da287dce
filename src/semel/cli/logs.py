"""Logging of the command line: on stderr, without secrets."""

from __future__ import annotations

import logging

from semel.errors import redact
from semel.logs import JsonFormatter


class _Formatter(logging.Formatter):
    """Whatever a library logs, no password gets through."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


def set_up(*, verbose: bool, as_json: bool) -> None:
    """Log warnings, or everything of interest, as text or as lines of JSON."""
    handler = logging.StreamHandler()
    text = _Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if as_json else text)
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler])


def tell_semel() -> None:
    """Log what semel does, as a worker should."""
    logging.getLogger("semel").setLevel(logging.INFO)
