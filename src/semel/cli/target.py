"""Which database a command works on: secrets come by environment or file, never by argument."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from semel.cli.load import load_hub
from semel.errors import ConfigurationError

if TYPE_CHECKING:
    from semel.hub import Hub
    from semel.sqlalchemy.storage import SqlAlchemyStorage

_SECRET_NAMES = ("password", "passwd", "pwd", "secret", "token")


@dataclass(frozen=True, slots=True)
class Target:
    """A hub, or only its database."""

    database: str | None = None
    hub: str | None = None

    def find_hub(self) -> Hub | None:
        """Return the hub that was named, or None."""
        if self.hub is not None and self.database is not None:
            raise ConfigurationError("--hub has a database of its own: leave --database away")
        name = self.hub
        if name is None and self.database is None:
            name = os.environ.get("SEMEL_HUB")
        return None if name is None else load_hub(name)

    def need_hub(self) -> Hub:
        """Return the hub that was named; raise `ConfigurationError` if none was."""
        found = self.find_hub()
        if found is None:
            raise ConfigurationError("this needs a hub: --hub package.module:name, or SEMEL_HUB")
        return found

    def storage(self) -> SqlAlchemyStorage:
        """Return the hub's storage, or one for the address that was given."""
        found = self.find_hub()
        if found is not None:
            return found.storage
        from semel.sqlalchemy.storage import SqlAlchemyStorage

        url = address("--database", self.database, "SEMEL_DATABASE_URL")
        if url is None:
            raise ConfigurationError(
                "which database? Set SEMEL_DATABASE_URL, or SEMEL_DATABASE_URL_FILE with the name "
                "of a file that holds it, or name a hub: --hub package.module:name"
            )
        return SqlAlchemyStorage(url)


def address(option: str, given: str | None, variable: str) -> str | None:
    """Return an address from its option, *variable* or the file that *variable*_FILE names.

    Arguments are visible to every user of the machine: one with a password is refused.
    """
    if given is not None:
        if has_secret(given):
            raise ConfigurationError(
                f"{option} has a password in it, which everybody on this machine can see: set "
                f"{variable}, or {variable}_FILE with the name of a file that holds the address"
            )
        return given
    value, file = os.environ.get(variable), os.environ.get(f"{variable}_FILE")
    if value and file:
        raise ConfigurationError(f"{variable} and {variable}_FILE are both set: unset one of them")
    if value or not file:
        return value or None
    try:
        text = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"the file that {variable}_FILE names cannot be read ({type(error).__name__})"
        ) from None
    if not text:
        raise ConfigurationError(f"the file that {variable}_FILE names is empty")
    return text


def has_secret(url: str) -> bool:
    """Tell whether an address carries a password or a token."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "@" in url
    authority, at, _ = parts.netloc.rpartition("@")
    if at and ":" in authority:
        return True
    names = [name.lower() for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
    return any(secret in name for name in names for secret in _SECRET_NAMES)
