"""An order of the enumeration: its gaps, and the least seconds of plans in which some are away."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import product
from math import inf
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tvdnn.graph import RAW, Form
from tvdnn.planner.ir.costs import Costs
from tvdnn.planner.ir.plan import HOST, Plan
from tvdnn.planner.lowering.idle import (
    IdleInterval,
    bridges_of,
    forward_backward_idle,
    intra_pass_idle,
)
from tvdnn.planner.lowering.list_scheduler import required_nbytes
from tvdnn.planner.lowering.program import Program

MIN_SHARE = 0.1  # of the bytes of the largest gap: smaller gaps are not bridged
MOST_GAPS = 10  # the largest: what is made again has gaps of its own
MIN_IDLE = 0.1  # of the launches' seconds: shorter gaps inside forward or backward are not bridged

Floats: TypeAlias = npt.NDArray[np.float64]
Bools: TypeAlias = npt.NDArray[np.bool_]


class Order:
    """A program in which nothing is away, its gaps, and bounds of the plans that it allows.

    Bounds are longest paths. A launch starts behind the one before it. It also starts behind any
    earlier launch and the copies that must come between the two.
    """

    def __init__(self, program: Program, costs: Costs) -> None:
        self.program, self._link = program, costs.links[HOST]
        self._seconds = np.array(program.launch_seconds(costs))
        self.required = required_nbytes(program).astype(np.float64)
        self.gaps = list(self._gaps())

    def _gaps(self) -> Iterator[tuple[IdleInterval, ...]]:
        """Idle intervals of all sections of a buffer in a form between the same slots."""
        found: dict[tuple[str, Form, int, int], list[IdleInterval]] = {}
        trips = forward_backward_idle(self.program)
        long_enough = (each for each in intra_pass_idle(self.program) if self._is_long(each))
        for each in (*trips, *long_enough):
            key = each.buffer, each.form, each.offload_after, each.needed_by
            found.setdefault(key, []).append(each)
        sizes = {key: sum(each.nbytes for each in gap) for key, gap in found.items()}
        least = MIN_SHARE * max(sizes.values(), default=0)
        large = [key for key in found if key[1] != RAW or sizes[key] > least]
        largest = sorted(large, key=lambda key: -sizes[key])[:MOST_GAPS]
        yield from (tuple(found[key]) for key in large if key in largest)

    def _is_long(self, idle: IdleInterval) -> bool:
        idle_s = self._seconds[idle.last + 1 : idle.next].sum()
        return bool(idle_s > MIN_IDLE * self._seconds.sum())

    def plan(self, choice: Bools) -> Plan:
        """The plan in which these gaps are away."""
        away = [idle for gap, taken in zip(self.gaps, choice, strict=True) if taken for idle in gap]
        plan = self.program.plan
        return replace(plan, bridges=tuple(bridges_of(away, plan.bridges)))

    @cached_property
    def _choices(self) -> Bools:
        return np.array(list(product((False, True), repeat=len(self.gaps))), bool)

    @property
    def least_nbytes(self) -> int:
        """The bytes of the fullest launch while all gaps are away."""
        return int((self.required - self._freed.sum(axis=0)).max())

    def choices(self, capacity: int) -> Bools:
        """The choices of gaps to be away that leave each launch its bytes [choices, gaps]."""
        fits = (self.required - self._choices @ self._freed <= capacity).all(axis=1)
        return self._choices[fits]

    @cached_property
    def _freed(self) -> Floats:
        """The bytes by gap and launch that the gap frees while it is away."""
        change = np.zeros((len(self.gaps), len(self.required) + 1))
        for row, gap in zip(change, self.gaps, strict=True):
            for idle in gap:
                row[idle.last + 1] += idle.nbytes
                row[idle.next] -= idle.nbytes
        return np.cumsum(change, axis=1)[:, :-1]

    def bounds_s(self, capacity: int, choices: Bools) -> Floats:
        """The seconds that no step takes less than, by choice of gaps to be away."""
        taken = choices.astype(np.float64)
        slack = capacity - self.required[self._key] + taken @ self._freed[:, self._key]
        returning = np.maximum(0, _summed(taken, self._returning) - slack[:, :, None])
        leaving = np.maximum(0, _summed(taken, self._leaving) - slack[:, None, :])
        returning = np.maximum(returning, _summed(taken, self._opened))
        return self._longest_s(self._seconds, leaving, returning)

    def bound_without_s(
        self, capacity: int, made: Collection[int], extra: Sequence[tuple[int, float]]
    ) -> float:
        """The seconds that no step takes less than in which these gaps are made again.

        Any others may be away. `extra` are launches, and the seconds of what runs ahead of them.
        """
        others = [number for number in range(len(self.gaps)) if number not in made]
        required, free = self.required - self._freed[[*made]].sum(axis=0), self._freed[others]
        if (required - capacity > free.sum(axis=0)).any():
            return inf
        over = (required - capacity)[self._key]
        spanning = free.sum(axis=0)[self._key]
        # Of what is over, the gaps that end latest are away, or those that begin earliest.
        late = np.maximum(0, spanning[:, None] - self._returning[others].sum(axis=0))
        early = np.maximum(0, spanning[None, :] - self._leaving[others].sum(axis=0))
        returning = np.maximum(0, over[:, None] - late)
        leaving = np.maximum(0, over[None, :] - early)
        seconds = self._seconds.copy()
        for launch, extra_s in extra:
            seconds[launch] += extra_s
        return float(self._longest_s(seconds, leaving[None], returning[None])[0])

    def _longest_s(self, seconds: Floats, leaving: Floats, returning: Floats) -> Floats:
        """The longest paths where so many bytes leave, and return, between two key launches."""
        link = self._link
        between = np.maximum(
            leaving / max(link.out, link.out_duplex),
            returning / max(link.back, link.back_duplex),
        )
        all_ends = np.cumsum(seconds)
        starts, ends = (all_ends - seconds)[self._key], all_ends[self._key]
        between = np.maximum(between, starts[None, None, :] - ends[None, :, None])
        found = np.full(between.shape[:2], ends[0])  # ends of key launches, by choice
        for n in range(1, len(self._key)):
            begins = (found[:, :n] + between[:, :n, n]).max(axis=1)
            found[:, n] = begins + ends[n] - starts[n]
        return found[:, -1] + all_ends[-1] - ends[-1]

    @cached_property
    def _key(self) -> npt.NDArray[np.int64]:
        """The launches between which paths count copies: ends of gaps, and the fullest."""
        idle = [each for gap in self.gaps for each in gap]
        ends = {launch for each in idle for launch in (each.last, each.next, each.final_after)}
        ends |= {0, int(self.required.argmax())}
        return np.array(sorted(ends - {-1}))

    @cached_property
    def _returning(self) -> Floats:
        """By gap: bytes that are back before a launch, and needed behind an earlier one."""
        found, key = self._tables(), self._key
        for table, gap in zip(found, self.gaps, strict=True):
            for idle in gap:
                table += idle.nbytes * np.outer(key < idle.next, key >= idle.next)
        return found

    @cached_property
    def _opened(self) -> Floats:
        """As `_returning`, of what is not prefetched before the end of the earlier launch."""
        slots = [launch.slot for launch in self.program.launches]
        found, key = self._tables(), self._key
        for table, gap in zip(found, self.gaps, strict=True):
            for idle in gap:
                opens = max(slots.index(idle.earliest_prefetch), idle.last + 1)
                table += idle.nbytes * np.outer(key < opens, key >= idle.next)
        return found

    @cached_property
    def _leaving(self) -> Floats:
        """By gap: bytes written behind a launch that are idle at a later one."""
        found, key = self._tables(), self._key
        for table, gap in zip(found, self.gaps, strict=True):
            for idle in gap:
                away = (idle.last < key) & (key < idle.next)
                table += idle.nbytes * np.outer(key <= idle.final_after, away)
        return found

    def _tables(self) -> Floats:
        return np.zeros((len(self.gaps), len(self._key), len(self._key)))


def _summed(taken: Floats, tables: Floats) -> Floats:
    """The sum of the tables that each choice takes [choices, launches, launches]."""
    return (taken @ tables.reshape(len(tables), -1)).reshape(len(taken), *tables.shape[1:])
