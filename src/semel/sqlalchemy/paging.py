"""Pages of rows, newest first; among rows of one moment their key decides."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from datetime import datetime
from typing import Any

from sqlalchemy import Column, ColumnElement, and_, or_

from semel.errors import ConfigurationError

#: The moment of a row, and its key.
Place = tuple[Any, ...]


class NewestFirst:
    """An order by a column of times and by a key; a page goes on behind a place in it."""

    def __init__(self, moment: Column[Any], *key: Column[Any]) -> None:
        self._moment = moment
        self._key = key
        self.columns = (moment, *key)

    def sort(self, query: Any) -> Any:
        """Return *query* in this order."""
        return query.order_by(*(column.desc() for column in self.columns))

    def behind(self, place: Place) -> ColumnElement[bool]:
        """Return the condition that a row comes after *place*, which is newer.

        Written out, and led by the time: not every database uses its index for a comparison of
        rows.
        """
        moment, *key = place
        after: ColumnElement[bool] = self._moment < moment
        equal: ColumnElement[bool] = self._moment == moment
        for column, value in zip(self._key, key, strict=True):
            after = or_(after, and_(equal, column < value))
            equal = and_(equal, column == value)
        return and_(self._moment <= moment, after)

    def end_of(self, moment: datetime) -> Place:
        """Return the place behind which only older moments are: a key is not empty."""
        return (moment, *[""] * len(self._key))

    def place(self, row: Any) -> Place:
        """Return where *row* is."""
        return tuple(getattr(row, column.name) for column in self.columns)

    def find(self, text: str) -> Place:
        """Return the place that *text* names; raise `ConfigurationError` if it names none."""
        try:
            moment, *key = json.loads(urlsafe_b64decode(text.encode()))
            place: Place = (datetime.fromisoformat(moment), *map(str, key))
        except (ValueError, TypeError, Base64Error):
            raise _wrong() from None
        if place[0].tzinfo is None or len(place) != len(self.columns):
            raise _wrong()
        return place


def encode(place: Place) -> str:
    """Return *place* as text, for the *before* of the next page."""
    moment, *key = place
    return urlsafe_b64encode(json.dumps([moment.isoformat(), *key]).encode()).decode()


def _wrong() -> ConfigurationError:
    return ConfigurationError("before must be the `next` of a page")
