"""The page that people on call and developers keep open, and the JSON API below it."""

from semel.errors import missing_extra

try:
    import jinja2 as _jinja2  # noqa: F401
    import starlette as _starlette  # noqa: F401
except ImportError as missing:
    raise ImportError(missing_extra("semel.dashboard", "dashboard")) from missing

from semel.dashboard.access import ADMIN, OPERATOR, READER, VIEWER, Action, DashboardAuth, Principal
from semel.dashboard.app import Dashboard, create_dashboard
from semel.dashboard.passwords import hash_password, hash_token
from semel.dashboard.providers import Account, AnyOf, BasicAuth, ProxyAuth, TokenAuth

__all__ = [
    "ADMIN",
    "OPERATOR",
    "READER",
    "VIEWER",
    "Account",
    "Action",
    "AnyOf",
    "BasicAuth",
    "Dashboard",
    "DashboardAuth",
    "Principal",
    "ProxyAuth",
    "TokenAuth",
    "create_dashboard",
    "hash_password",
    "hash_token",
]
