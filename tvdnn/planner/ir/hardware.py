"""Hardware profiles: JSON files by which plans are made for machines that are not at hand."""

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from ...errors import InputError
from .costs import RANKS, Hardware, Link
from .plan import FILE, PEER

FOLDER = Path(__file__).parents[2] / "hardware"
# Links between processes of one machine or of several, each with a GPU, by the name of the bus or
# network. Rates are four fifths of those of the data sheets; seconds are those of a message.
INTERCONNECTS = {
    "NVLink": Link(360e9, 360e9, 360e9, 360e9, 2e-6),
    "PCIe": Link(51e9, 51e9, 51e9, 51e9, 5e-6),
    "100GbE": Link(10e9, 10e9, 10e9, 10e9, 2e-5),
}
# Links of tiers that a profile does not name. The file's are assumed: those of one drive on PCIe 3
# x4. The peer's are the copy engines' between two H200 over NVLink (2026-11).
ASSUMED_LINKS = {
    FILE: Link(2e9, 3e9, 1.5e9, 2e9, 1e-4),
    PEER: Link(394e9, 394e9, 198e9, 198e9, 7.5e-6),
    RANKS: INTERCONNECTS["NVLink"],
}


def over(machine: Hardware, link: str) -> Hardware:
    """The machine, whose processes are linked by an interconnect of this name.

    Raises InputError with all names for one that is not known.
    """
    known = {_normalized(name): each for name, each in INTERCONNECTS.items()}
    if _normalized(link) not in known:
        names = ", ".join(INTERCONNECTS)
        raise InputError(f"there is no interconnect {link!r}; choose one of {names}")
    return replace(machine, links={**machine.links, RANKS: known[_normalized(link)]})


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
            links = {tier: Link(**rates) for tier, rates in fields["links"].items()}
            own = {"links": ASSUMED_LINKS | links, "sources": tuple(fields["sources"])}
            return Hardware(**{**fields, **own})
    raise InputError(f"there is no hardware profile {name!r}; choose one of {', '.join(names())}")


def _normalized(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _profiles() -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))]
