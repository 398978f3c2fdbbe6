"""Spilling: what a tier cannot hold rests in the next one, the farthest next use first.

A plan says which sections leave the device. Here each gets a tier: the first of the budgets' while
that has bytes at every launch. Where it has not, the section whose next use is farthest goes on to
the next tier, as Belady's rule has it of pages. It would hold its bytes for longest.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np

from ...graph import Form, Graph
from ..ir.budgets import Budgets
from ..ir.plan import FILE, HOST, Bridge, Plan
from .build_program import build_program
from .launch_limits import Array
from .program import Program

# Shares of a tier's budget for sections that rest there, tried one after the other. Placement and
# the bytes that stay until copies have ended take the others.
SPILL_SHARES: Final = (0.9, 0.7, 0.4, 0.0)
# Sections of the largest size for which the slab has bounce buffers where some go to a file: two
# that are written or read, and two that are copied, each way. At most half of its budget.
BOUNCED: Final = 8

Rested: TypeAlias = tuple[str, int, Form, int]  # buffer, section, form, slot of the use behind


@dataclass(frozen=True, slots=True)
class _Rest:
    """A section away from the device, from its offload to its last prefetch."""

    keys: tuple[Rested, ...]  # a prefetch each
    nbytes: int
    first: int  # launch behind which it leaves
    last: int  # launch before which it is back for good


def with_spills(graph: Graph, plan: Plan, budgets: Budgets, share: float = SPILL_SHARES[0]) -> Plan:
    """The plan with a tier for each section that leaves the device, by the budgets of these.

    With one tier alone the plan stays as it is.
    """
    if len(budgets.tiers.order) < 2 or not plan.transfers:
        return plan
    first, *others = budgets.tiers.order
    plan = replace(plan, bridges=tuple(_in_tier(each, first) for each in plan.bridges))
    program = build_program(graph, plan)
    rests, tiers = list(_rests(program)), dict[Rested, str]()
    here, spilled = first, rests
    for tier in (*others, None):
        limit = budgets.of_tier(here)
        if tier is None or limit is None:
            break
        base = _tails(program) if here == HOST else np.zeros(len(program.launches), np.int64)
        if not _excess(spilled, base, limit):
            break
        spilled = _excess(spilled, base, int(share * _capacity(limit, here, tier, rests)))
        tiers |= {key: tier for rest in spilled for key in rest.keys}
        here = tier
    return replace(plan, bridges=tuple(_with_tiers(plan, tiers))) if tiers else plan


def _in_tier(bridge: Bridge, tier: str) -> Bridge:
    return bridge if bridge.tier is None else replace(bridge, tier=tier)


def _capacity(limit: int, here: str, tier: str, rests: Sequence[_Rest]) -> int:
    """The bytes of a tier but those of bounce buffers for what goes on to a file."""
    if (here, tier) != (HOST, FILE):
        return limit
    return limit - min(BOUNCED * max(rest.nbytes for rest in rests), limit // 2)


def _rests(program: Program) -> Iterator[_Rest]:
    """The sections of a program that are away, with all prefetches of one offload together."""
    found: dict[int, list[int]] = {}
    lives = program.intervals
    for number, live in enumerate(lives):
        if live.is_prefetched:
            found.setdefault(program.offload_source(number), []).append(number)
    for source, numbers in found.items():
        keys = tuple(
            (live.buffer, live.section, live.form, live.needed_by)
            for live in (lives[number] for number in numbers)
        )
        last = max(lives[number].first for number in numbers)
        yield _Rest(keys, lives[source].nbytes, lives[source].last, last)


def _tails(program: Program) -> Array:
    """By launch, the bytes of the tails of codes, which stay on the host."""
    spans: dict[int, tuple[int, int, int]] = {}
    for index, tail in program.tails.items():
        first = spans[tail.code][0] if tail.code in spans else index
        spans[tail.code] = first, index, tail.nbytes
    change = np.zeros(len(program.launches) + 1, np.int64)
    for first, last, nbytes in spans.values():
        change[first] += nbytes
        change[last + 1] -= nbytes
    found: Array = np.cumsum(change)[:-1]
    return found


def _excess(rests: Sequence[_Rest], base: Array, limit: int) -> list[_Rest]:
    """The rests that do not fit beside the others in `limit` bytes, with `base` bytes taken."""
    held = base.copy()
    for rest in rests:
        held[rest.first : rest.last + 1] += rest.nbytes
    firsts = np.array([rest.first for rest in rests], np.int64)
    lasts = np.array([rest.last for rest in rests], np.int64)
    left = np.ones(len(rests), np.bool_)
    found: list[_Rest] = []
    while len(held) and held[fullest := int(held.argmax())] > limit:
        there = np.flatnonzero(left & (firsts <= fullest) & (fullest <= lasts))
        if not there.size:
            break
        farthest = int(there[np.argmax(lasts[there])])
        rest = rests[farthest]
        left[farthest] = False
        held[rest.first : rest.last + 1] -= rest.nbytes
        found.append(rest)
    return found


def _with_tiers(plan: Plan, tiers: Mapping[Rested, str]) -> Iterator[Bridge]:
    """The bridges, cut where neighbouring sections rest in different tiers."""
    for bridge in plan.bridges:
        if bridge.tier is None:
            yield bridge
            continue
        stop = bridge.first + bridge.count
        begin, tier = bridge.first, _tier_of(bridge, bridge.first, tiers)
        for section in range(bridge.first + 1, stop + 1):
            other = _tier_of(bridge, section, tiers) if section < stop else None
            if other != tier:
                yield replace(bridge, first=begin, count=section - begin, tier=tier)
                begin, tier = section, other


def _tier_of(bridge: Bridge, section: int, tiers: Mapping[Rested, str]) -> str | None:
    key = bridge.buffer, section, bridge.form, bridge.needed_by
    return tiers.get(key, bridge.tier)
