"""What must not be sent now although it is due."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from semel.relay import Entry, Key


class Suspicion(NamedTuple):
    """When an event last had trouble while others passed, and how often."""

    since: float
    times: int


class Holds:
    """Blocked keys, topics and tenants that are paused or in trouble, and the keys they hold."""

    def __init__(self) -> None:
        #: Keys behind a DEAD event.
        self.blocked: set[Key] = set()
        self.topics: frozenset[str] = frozenset()
        self.tenants: frozenset[str] = frozenset()
        #: Keys of which rows are parked: the others must not overtake them.
        self.keys: set[Key] = set()
        self._newly_blocked: set[Key] = set()

    def __contains__(self, entry: Entry) -> bool:
        """Tell whether *entry* has to wait; from then on its key waits, too."""
        key = entry.key
        if key is not None and (key in self.blocked or key in self.keys):
            return True
        envelope = entry.envelope
        if envelope.topic not in self.topics and envelope.tenant_id not in self.tenants:
            return False
        if key is not None:
            self.keys.add(key)
        return True

    @property
    def are_any(self) -> bool:
        """Whether anything is held."""
        return bool(self.blocked or self.keys or self.topics or self.tenants)

    @property
    def may_end(self) -> bool:
        """Whether rows are parked for a reason that we shall hear of when it ends."""
        return bool(self.topics or self.tenants or self.keys)

    def block(self, key: Key) -> None:
        """An event of this key is DEAD."""
        self.blocked.add(key)
        self._newly_blocked.add(key)

    def begin_survey(self) -> None:
        """The blocked keys are about to be read from the table."""
        self._newly_blocked = set()

    def found(self, keys: Collection[Key]) -> set[Key]:
        """Return the keys that a survey found, and those blocked since it began."""
        return set(keys) | self._newly_blocked
