"""All planted bugs, in the order of their numbers."""

from __future__ import annotations

from tests.mutants.edges import EDGES
from tests.mutants.effects import EFFECTS
from tests.mutants.relay import RELAY

#: So many bugs are on the list; some are planted in several forms.
NUMBERS = range(1, 23)

BUGS = tuple(sorted((*RELAY, *EFFECTS, *EDGES), key=lambda bug: (bug.number, bug.id)))
