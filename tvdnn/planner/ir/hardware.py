"""Hardware profiles: JSON files by which plans are made for machines that are not at hand."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from ...errors import InputError
from .costs import Hardware, HostLink

FOLDER = Path(__file__).parents[2] / "hardware"


def names() -> tuple[str, ...]:
    """The names of all machines with a profile."""
    return tuple(sorted(fields["name"] for fields in _profiles()))


@cache
def load(name: str) -> Hardware:
    """The profile of the machine `name`. Case, spaces and dashes of the name do not matter.

    Raises InputError with all names for a machine without a profile.
    """
    key = _normalized(name)
    for fields in _profiles():
        if _normalized(fields["name"]) == key:
            link, sources = HostLink(**fields["link"]), tuple(fields["sources"])
            return Hardware(**{**fields, "link": link, "sources": sources})
    raise InputError(f"there is no hardware profile {name!r}; choose one of {', '.join(names())}")


def _normalized(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _profiles() -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))]
