"""What a look at a deployment found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """An error breaks a promise; a warning may, or costs speed; an info is good to know."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something that is not as it should be, and what to do about it.

    *code* is stable: scripts may look for it.
    """

    severity: Severity
    code: str
    sentence: str
    fix: str


def error(code: str, sentence: str, fix: str) -> Finding:
    """Return a finding that breaks a promise."""
    return Finding(severity=Severity.ERROR, code=code, sentence=sentence, fix=fix)


def warning(code: str, sentence: str, fix: str) -> Finding:
    """Return a finding that may break one, or costs speed."""
    return Finding(severity=Severity.WARNING, code=code, sentence=sentence, fix=fix)


def info(code: str, sentence: str, fix: str) -> Finding:
    """Return a finding that is good to know."""
    return Finding(severity=Severity.INFO, code=code, sentence=sentence, fix=fix)
