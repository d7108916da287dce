"""Run what a command does."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

from semel.errors import SemelError, describe, redact
from semel.sqlalchemy.storage import DATABASE_ERRORS

_errors = Console(stderr=True)
_TOLD: tuple[type[Exception], ...] = (SemelError, *DATABASE_ERRORS)


def run_async(work: Coroutine[Any, Any, Any]) -> Any:
    """Run *work*; say in one line what went wrong, without a stack."""
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except _TOLD as error:
        text = redact(str(error)) if isinstance(error, SemelError) else describe(error)
        _errors.print("[bold red]error:[/]", escape(text), highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None
