"""How a command's work ends: an exit code that says how it went, and a word about it."""

from __future__ import annotations

import asyncio
import gc
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from semel.cli.exits import Exit
from semel.errors import ConfigurationError, SchemaError, SemelError, describe, redact


@contextmanager
def reported() -> Iterator[None]:
    """Say in one line what goes wrong inside, without a stack, and end with its exit code."""
    from semel.sqlalchemy.storage import DATABASE_ERRORS

    try:
        yield
    except (KeyboardInterrupt, typer.Abort):
        raise typer.Exit(Exit.INTERRUPTED) from None
    except (typer.Exit, typer.BadParameter):
        raise
    except SemelError as error:
        fail(redact(str(error)), _code(error))
    except BrokenPipeError:
        raise typer.Exit(Exit.OK) from None  # the reader has seen enough
    except DATABASE_ERRORS as error:
        fail(describe(error), Exit.UNAVAILABLE)
    except Exception as error:  # noqa: BLE001  whatever it is, its text may have a secret in it
        frames = "".join(traceback.format_tb(error.__traceback__))
        fail(f"{describe(error)}\n{redact(frames)}", Exit.BUG)


def collect_rarely() -> None:
    """Let the garbage collector leave alone what is loaded, and look at the rest less often.

    A window of events is thousands of objects that live for milliseconds, in no circles: looking
    for circles among them took a worker a quarter of its time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


@contextmanager
def interrupted() -> Iterator[asyncio.Event]:
    """Lend an event that the first Ctrl-C or SIGTERM sets; the second one ends at once."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)

    def restore() -> None:
        for number in numbers:
            loop.remove_signal_handler(number)

    def handle() -> None:
        stop.set()
        restore()

    for number in numbers:
        loop.add_signal_handler(number, handle)
    try:
        yield stop
    finally:
        restore()


def _code(error: SemelError) -> Exit:
    if isinstance(error, ConfigurationError):
        return Exit.USAGE
    return Exit.PROBLEM if isinstance(error, SchemaError) else Exit.UNAVAILABLE


def fail(text: str, code: Exit) -> NoReturn:
    """Say *text* on stderr and end with *code*."""
    console = Console(stderr=True)
    console.print("[bold red]error:[/]", escape(text), highlight=False, soft_wrap=True)
    raise typer.Exit(code)
