"""Hardware profiles: JSON files of machines that plans can be made for without being on them."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from ...errors import InputError
from .costs import Hardware, Link

FOLDER = Path(__file__).parents[2] / "hardware"


def names() -> tuple[str, ...]:
    """The machines that have a profile."""
    return tuple(sorted(json.loads(path.read_text())["name"] for path in FOLDER.glob("*.json")))


@cache
def load(name: str) -> Hardware:
    """The profile of the machine `name`, in any case and with or without spaces and dashes.

    Raises InputError, with the names there are, for a machine that has none.
    """
    wanted = _plain(name)
    for path in sorted(FOLDER.glob("*.json")):
        fields = json.loads(path.read_text())
        if _plain(fields["name"]) == wanted:
            return _hardware(fields)
    raise InputError(f"there is no hardware profile {name!r}; choose one of {', '.join(names())}")


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _hardware(fields: dict[str, Any]) -> Hardware:
    link, sources = Link(**fields["link"]), tuple(fields["sources"])
    return Hardware(**{**fields, "link": link, "sources": sources})
