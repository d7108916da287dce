"""Find a hub by its name."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from semel.errors import ConfigurationError
from semel.hub import Hub


def load_hub(target: str) -> Hub:
    """Import `package.module:name` and return the hub there."""
    module_name, colon, attribute = target.partition(":")
    if not colon or not module_name or not attribute:
        raise ConfigurationError(f"{target!r} is not of the form package.module:name")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and not module_name.startswith(error.name):
            raise
        raise ConfigurationError(
            f"there is no module {module_name!r} here or on PYTHONPATH"
        ) from None
    found = getattr(module, attribute, None)
    if not isinstance(found, Hub):
        names = [name for name, value in vars(module).items() if isinstance(value, Hub)]
        hint = f"it has {', '.join(names)}" if names else "it has no hub"
        raise ConfigurationError(f"{module_name} has no hub named {attribute!r}: {hint}")
    return found
