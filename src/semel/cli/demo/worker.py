"""What `semel run semel.cli.demo.worker:hub` runs."""

from __future__ import annotations

import os
from pathlib import Path

from semel.cli.demo.shop import FOLDER, make_hub

hub = make_hub(Path(os.environ[FOLDER]))
