"""The command line: `semel`."""

from __future__ import annotations

import sys

from semel.errors import missing_extra

__all__ = ["main"]


def main() -> None:
    """Run the command line, or say how to install it."""
    try:
        from semel.cli.app import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit(missing_extra("the command line", "cli"))
    app(prog_name="semel")
