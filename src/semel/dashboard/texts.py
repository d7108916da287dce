"""English and Chinese. The English text is the key; what has no translation stays English."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

LANGUAGES = {"en": "English", "zh": "中文"}
#: What the script says.
SCRIPT_TEXTS = (
    "Cancel",
    "Copied.",
    "Done.",
    "Figures come in a moment",
    "It runs; the page shows how far it is.",
    "Nothing was changed: somebody was faster.",
    "Something went wrong here; the log says what.",
    "The database does not answer.",
    "The payload is not JSON.",
    "There is nothing here, or nothing that you may see.",
    "You may not do this.",
    "asleep",
    "in {span}",
    "job cancelled",
    "job failed",
    "job finished",
    "job running",
    "just now",
    "live",
    "no connection",
    "verb drop",
    "verb release",
    "verb replay",
    "verb requeue",
    "{n} changed",
    "{n} events match now",
    "{span} ago",
)
_FOLDER = Path(__file__).parent / "catalogues"


class Texts:
    """Translates into one language."""

    def __init__(self, catalogue: Mapping[str, str]) -> None:
        self.catalogue = catalogue

    def __call__(self, text: str, **values: object) -> str:
        """Return the translation of *text* with *values* filled in."""
        found = self.catalogue.get(text, text)
        for name, value in values.items():
            found = found.replace(f"{{{name}}}", str(value))
        return found


@cache
def texts(language: str) -> Texts:
    """Return the texts of one of `LANGUAGES`."""
    content = (_FOLDER / f"{language}.json").read_text(encoding="utf-8")
    return Texts(json.loads(content))
