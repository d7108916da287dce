"""Logging of the command line: on stderr, without secrets."""

from __future__ import annotations

import logging

from semel.errors import redact


class _Formatter(logging.Formatter):
    """Whatever a library logs, no password gets through."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


def set_up(*, verbose: bool) -> None:
    """Log warnings, or everything of interest."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, handlers=[handler])


def tell_semel() -> None:
    """Log what semel does, as a worker should."""
    logging.getLogger("semel").setLevel(logging.INFO)
