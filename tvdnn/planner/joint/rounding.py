"""Rounding: from shares of maps to rows that are made again at points."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import ceil, lcm

import numpy as np

from .columns import Columns
from .remakes import Remake
from .weave import MadeRows

FULL, NONE = 0.93, 0.04


class Rounding:
    """Rows of what is made again, for the shares of a linear program."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._graph = columns.skeleton.program.graph
        self._staying: dict[tuple[str, int], list[int]] = defaultdict(list)
        for j, each in enumerate(columns.absent):
            self._staying[each.buffer, each.low].append(j)
        self._unit: dict[Remake, int] = {}
        self._end: dict[Remake, bool] = {}

    def unit(self, remake: Remake) -> int:
        """Rows of which multiples may be made; the domain where all must be."""
        if remake not in self._unit:
            passes = [self._graph.passes[i] for i in remake.makers]
            domain = passes[0].domain
            whole = any(use.whole for p in passes for use in p.writes) or any(
                p.domain != domain or p.reads_neighbours for p in passes
            )
            sections = [self._graph.buffers[n] for n in remake.buffers]
            unit = lcm(*(p.unit for p in passes))
            unit = lcm(unit, *(b.section for b in sections if b.rows == domain))
            if whole or any(b.rows != domain for b in sections):
                unit = domain
            self._unit[remake] = min(unit, domain)
        return self._unit[remake]

    def rows(self, taken: Iterable[int]) -> dict[int, np.ndarray]:
        """By absent column that is taken, its rows."""
        found = {}
        for j in sorted(taken):
            each = self._columns.absent[j]
            mask = np.zeros(self._graph.passes[each.remake.makers[0]].domain, bool)
            mask[slice(*each.rows)] = True
            found[j] = mask
        return found

    def completed(
        self, staying: Mapping[int, np.ndarray]
    ) -> tuple[dict[int, list[MadeRows]], dict[int, list[int]]]:
        """By point what is made, by pass and rows, and the packs of weights for it."""
        columns, made = self._columns, self._columns.absent
        gone: dict[str, list[tuple[int, int, np.ndarray]]] = defaultdict(list)
        at: dict[int, dict[Remake, np.ndarray]] = defaultdict(dict)
        for j, mask in staying.items():
            each = made[j]
            gone[each.buffer].append((each.low, each.point, mask))
            at[each.point][each.remake] = mask | at[each.point].get(each.remake, False)
        for point in sorted(at):
            self._complete(point, at[point], gone)
        rows: dict[int, list[MadeRows]] = {}
        packs: dict[int, list[int]] = {}
        for point, remakes in at.items():
            by_pass: dict[int, np.ndarray] = {}
            for remake, mask in remakes.items():
                for index in remake.makers:
                    by_pass[index] = mask | by_pass.get(index, False)
            key = columns.first_pass[point]
            rows[key] = [
                MadeRows(index, run) for index, mask in by_pass.items() for run in _runs(mask)
            ]
            packs[key] = sorted({i for remake in remakes for i in remake.packs})
        return rows, packs

    def _complete(self, point: int, here: dict[Remake, np.ndarray], gone) -> None:
        """Make there what the makers at this point read and is not there."""
        columns = self._columns
        due = sorted(here, key=lambda r: r.makers[-1])
        while due:
            remake = max(due, key=lambda r: r.makers[-1])
            due.remove(remake)
            need = here[remake]
            for name, writers in remake.takes:
                whole = columns.remakes.of.get(name)
                if whole is None:
                    continue
                part = columns.remakes.making(name, writers)
                if part is None or len(need) != self._graph.passes[part.makers[0]].domain:
                    continue
                alive = any(u >= point for u in columns.uses[name])
                missing = np.zeros(len(need), bool)
                if not alive:
                    missing = need.copy()
                else:
                    for low, until, mask in gone.get(name, ()):
                        if low < point < until:
                            missing |= mask & need
                if whole in here:
                    missing &= ~here[whole]
                if part in here:
                    missing &= ~here[part]
                if missing.any():
                    missing = _rounded(missing, self.unit(part))
                    here[part] = missing | here.get(part, False)
                    if part not in due:
                        due.append(part)


def _rounded(mask: np.ndarray, unit: int) -> np.ndarray:
    out = mask.copy()
    for start in range(0, len(mask), unit):
        if mask[start : start + unit].any():
            out[start : start + unit] = True
    return out


def _runs(mask: np.ndarray) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate(([0], mask.astype(np.int8), [0]))))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2])]
