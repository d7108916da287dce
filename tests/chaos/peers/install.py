"""A pinned release of another library, in a folder of its own in the user's cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SAGAZ = "sagaz[postgres]==1.5.0"


def installed(requirement: str) -> Path:
    """Return the folder with the library and what it needs; install it the first time."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "semel" / "peers"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = cache / f"{requirement.replace('[', '-').replace(']==', '-')}-py{version}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as made:
            target = Path(made) / "lib"
            options = ["--quiet", "--disable-pip-version-check", "--target", str(target)]
            command = [sys.executable, "-m", "pip", "install", *options, requirement]
            subprocess.run(command, check=True, timeout=300)
            shutil.move(target, folder)
    return folder
