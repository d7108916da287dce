"""Every page and every action; what is not listed here is not served."""

from semel.dashboard.access import Action
from semel.dashboard.views import (
    audit,
    blocked,
    bulk,
    consumers,
    dead,
    event,
    idempotency,
    inbox,
    outbox,
    overview,
    pauses,
    preferences,
    projectors,
)
from semel.dashboard.views.base import Deed, View

MODULES = (
    overview,
    outbox,
    event,
    dead,
    bulk,
    blocked,
    pauses,
    projectors,
    inbox,
    consumers,
    idempotency,
    audit,
    preferences,
)
VIEWS: tuple[View, ...] = tuple(view for module in MODULES for view in module.VIEWS)
DEEDS: tuple[Deed, ...] = tuple(deed for module in MODULES for deed in module.DEEDS)
LIVE = View(path="/live", template="", read=overview.read, action=Action.VIEW)
