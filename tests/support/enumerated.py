"""The fastest plan of a small network among all combinations of means, gap by gap.

A gap is what lies between two uses of a map, or of its code. Over it the map stays, is away, is
made again, or has a code, which may be away as well. All sections of a map are bridged alike. No
part of a search of the planner is used: plans are woven, lowered, placed, checked and simulated one
by one, those first that may take least. Plans that cannot take less than the best are left out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from itertools import count, product
from math import inf
from typing import NamedTuple, TypeAlias

from tests.support.enumerated_order import Bools, Order
from tvdnn.graph import RAW, Direction, Form, Graph, Kind
from tvdnn.planner.ir.budgets import Budgets
from tvdnn.planner.ir.costs import Costs
from tvdnn.planner.ir.plan import Bridge, Plan, Segment
from tvdnn.planner.ir.schedule import Schedule, counts_nbytes
from tvdnn.planner.lowering.arena_layout import place_arena_within
from tvdnn.planner.lowering.build_program import build_program
from tvdnn.planner.lowering.codes import codable
from tvdnn.planner.lowering.emit import emit_schedule
from tvdnn.planner.lowering.launch_limits import FragmentationError
from tvdnn.planner.lowering.list_scheduler import CapacityError
from tvdnn.planner.lowering.segments import Variant, pass_groups
from tvdnn.planner.lowering.timetable import Timetable
from tvdnn.planner.recompute.supplies import Supplies
from tvdnn.planner.recompute.weave import Making, PassRun, weave
from tvdnn.planner.timing.simulate import simulate
from tvdnn.planner.verify.check import check

MADE, AWAY, CODED, CODED_AWAY = "made again", "away", "coded", "coded and away"
MEANS = (MADE, AWAY, CODED, CODED_AWAY)
MOST_ENCODED = 2  # maps behind a ReLU, the largest
LIMITS = (1.0, 0.95, 0.9, 0.85, 0.8)  # shares of the arena
BLOCKS = (Variant.KEEP, Variant.MEMORY)  # of all layers alike

Read: TypeAlias = tuple[str, int]  # a buffer, and the pass that reads it


class Code(NamedTuple):
    """A code that a read takes instead of the raw map."""

    buffer: str
    form: Form
    maker: int  # the pass that leaves the code, or behind which it is encoded
    reader: int


class Decisions(NamedTuple):
    """What is decided before anything is away."""

    block: Variant
    made: frozenset[Read]  # gaps over which the map is made again, by the read behind
    codes: tuple[Code, ...]


@dataclass(frozen=True, slots=True)
class Enumerated:
    """The fastest plan found, and how many were simulated."""

    seconds: float
    num_simulated: int = 0
    complete: bool = True  # no plan is left that might take less
    decisions: Decisions | None = None
    schedule: Schedule | None = None

    @property
    def means(self) -> frozenset[str]:
        """The means that the plan uses."""
        found = {MADE} if self.decisions and self.decisions.made else set()
        for bridge in self.schedule.plan.bridges if self.schedule else ():
            if bridge.form == RAW:
                found.add(AWAY)
            else:
                found.add(CODED if bridge.tier is None else CODED_AWAY)
        return frozenset(found)


@dataclass(order=True, slots=True)
class _Node:
    """Plans that take at least so many seconds."""

    bound_s: float
    number: int
    decisions: Decisions = field(compare=False)
    choice: Bools | None = field(compare=False, default=None)  # None: any gaps are away


@dataclass
class Enumeration:
    """All plans of a graph on a machine, and the orders made so far."""

    graph: Graph
    costs: Costs
    _orders: dict[Decisions, Order] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._supplies = Supplies(self.graph)
        base = self.order(Decisions(Variant.KEEP, frozenset(), ()))
        self.num_gaps = len(base.gaps)
        self.made = [*self._may_be_made(base)]
        self.coded = [*self._may_be_coded()]

    @property
    def num_decisions(self) -> int:
        """How many orders there are at most for each block."""
        codes = [len(each) for each in self.coded]
        return sum(1 for _ in product(*map(range, codes))) << len(self.made)

    def least_nbytes(self) -> int:
        """The least bytes of the arena that the fullest launch takes while all gaps are away."""
        return min(order.least_nbytes for _, order in self._bases())

    def fastest(
        self,
        capacity: int,
        below_s: float = inf,
        *,
        without: frozenset[str] = frozenset(),
        most: int | None = None,
    ) -> Enumerated:
        """The fastest plan in an arena of so many bytes that does without some means.

        Where none takes less than `below_s`, no plan, and these seconds. At most so many are
        simulated.
        """
        budgets = Budgets.of(self.graph, self.graph.fixed_nbytes + capacity)
        best, simulated, ties = Enumerated(below_s), 0, count()
        heap = [
            _Node(self._least_s(each, capacity), next(ties), each)
            for each in self._decisions(without)
        ]
        heapify(heap)
        while heap and heap[0].bound_s < best.seconds:
            node = heappop(heap)
            order = self.order(node.decisions)
            if node.choice is None:
                choices = order.choices(capacity)
                bounds = order.bounds_s(capacity, choices).tolist()
                for bound_s, choice in zip(bounds, choices, strict=True):
                    if bound_s < best.seconds and _may_be_away(order, choice, without):
                        heappush(heap, _Node(bound_s, next(ties), node.decisions, choice))
                continue
            if simulated == most:
                return replace(best, num_simulated=simulated, complete=False)
            simulated += 1
            schedule = _lowered(self.graph, order.plan(node.choice), self.costs, budgets)
            seconds = simulate(schedule, self.costs).step_s if schedule else inf
            if schedule and seconds < best.seconds:
                check(schedule)
                found = {"decisions": node.decisions, "schedule": schedule}
                best = Enumerated(seconds, **found)
        return replace(best, num_simulated=simulated)

    def _least_s(self, decisions: Decisions, capacity: int) -> float:
        """The seconds that no plan of these decisions takes less than."""
        block, made, codes = decisions
        base = self.order(Decisions(block, frozenset(), codes))
        slots = base.program.plan.slots
        gaps, first = [], dict[int, int]()  # by maker, the launch ahead of which it runs again
        for number, gap in enumerate(base.gaps):
            read = gap[0].buffer, slots[gap[0].needed_by].pass_index
            if gap[0].form == RAW and read in made:
                gaps.append(number)
                supply = self._supplies.of(*read)
                for index in supply.passes if supply else ():
                    first[index] = max(first.get(index, 0), gap[0].next)
        extra = [(at, self.costs.min_pass_s(self.graph.passes[i])) for i, at in first.items()]
        return base.bound_without_s(capacity, gaps, extra)

    def _bases(self) -> Iterator[tuple[Decisions, Order]]:
        """The different orders in which nothing is made again."""
        seen = set[tuple[Segment, ...]]()
        for block in BLOCKS:
            segments = self.order(Decisions(block, frozenset(), ())).program.plan.segments
            if segments in seen:
                continue
            seen.add(segments)
            for codes in product(*self.coded):
                taken = tuple(code for code in codes if code is not None)
                base = Decisions(block, frozenset(), taken)
                yield base, self.order(base)

    def _decisions(self, without: frozenset[str]) -> Iterator[Decisions]:
        for base, order in self._bases():
            if base.codes and {CODED, CODED_AWAY} <= without:
                continue
            slots = order.program.plan.slots
            raw = (gap[0] for gap in order.gaps if gap[0].form == RAW)
            gaps = {(first.buffer, slots[first.needed_by].pass_index) for first in raw}
            free = [read for read in self.made if read in gaps and MADE not in without]
            for chosen in product((False, True), repeat=len(free)):
                made = (read for read, taken in zip(free, chosen, strict=True) if taken)
                yield base._replace(made=frozenset(made))

    def order(self, decisions: Decisions) -> Order:
        """The order of these decisions, nothing away."""
        if decisions not in self._orders:
            segments = self._woven(decisions)
            plan = Plan("enumerated", segments, tuple(self._bridges(segments, decisions.codes)))
            self._orders[decisions] = Order(build_program(self.graph, plan), self.costs)
        return self._orders[decisions]

    def _woven(self, decisions: Decisions) -> tuple[Segment, ...]:
        runs = [PassRun(tuple(group), decisions.block) for group in pass_groups(self.graph)]
        made = dict.fromkeys(decisions.made, Making.AFRESH)
        return tuple(weave(self.graph, self._supplies, runs, made, decisions.block))

    def _bridges(self, segments: Sequence[Segment], codes: Sequence[Code]) -> Iterator[Bridge]:
        slots = [slot for segment in segments for slot in segment.slots]
        place = {slot.pass_index: n for n, slot in enumerate(slots) if not slot.recompute}
        for code in codes:
            sections, back = self.graph.buffers[code.buffer].num_sections, place[code.reader]
            where = place[code.maker], back, back
            yield Bridge(code.buffer, 0, sections, *where, code.form, tier=None)

    def _may_be_made(self, base: Order) -> Iterator[Read]:
        slots = base.program.plan.slots
        for first, *_ in base.gaps:
            reader = slots[first.needed_by].pass_index
            backward = self.graph.passes[reader].direction is not Direction.FORWARD
            of_map = self.graph.buffers[first.buffer].kind is Kind.MAP
            if backward and of_map and self._supplies.of(first.buffer, reader):
                yield first.buffer, reader

    def _may_be_coded(self) -> Iterator[tuple[Code | None, ...]]:
        """By map or read that may have a code: none, or one of these.

        A read that takes codes finds one that the map's maker leaves, or one encoded later. Codes
        that no maker leaves, such as signs for the masks of convolutions, are no means here, since
        `auto` has none of them. The largest maps behind a ReLU may be encoded between forward and
        backward and decoded again.
        """
        passes = self.graph.passes
        for reader, pass_ in enumerate(passes):
            for use in pass_.reads:
                for form in use.forms:
                    makers = self._supplies.sources(use.buffer, reader)
                    writes = (write for maker in makers for write in passes[maker].writes)
                    if not any(w.buffer == use.buffer and form in w.also for w in writes):
                        continue
                    used = (n for n in range(reader) if use.buffer in passes[n].used_buffers)
                    places = dict.fromkeys((max(makers), max(used)))
                    codes = (Code(use.buffer, form, each, reader) for each in places)
                    yield None, *codes
        found = dict(codable(self.graph))
        sizes = {name: self.graph.buffers[name].nbytes for name in found}
        for name in sorted(found, key=lambda each: -sizes[each])[:MOST_ENCODED]:
            code = self._encoded(name, found[name])
            if code is not None:
                yield None, code

    def _encoded(self, name: str, form: Form) -> Code | None:
        """The code of a map from its last use in forward to the first backward read of values."""
        passes = self.graph.passes
        forward = [n for n, each in enumerate(passes) if each.direction is Direction.FORWARD]
        users = [n for n in forward if name in passes[n].used_buffers]
        readers = (
            n
            for n in range(len(forward), len(passes))
            if any(use.buffer == name and not use.forms for use in passes[n].reads)
        )
        reader = next(readers, None)
        return None if reader is None else Code(name, form, users[-1], reader)


def _lowered(graph: Graph, plan: Plan, costs: Costs, budgets: Budgets) -> Schedule | None:
    """The schedule under the highest limit on live bytes under which all find a place."""
    assert budgets.arena is not None
    program = build_program(graph, plan)
    arena = budgets.arena - counts_nbytes(len(program.counts))
    for share in LIMITS:
        try:
            steps = Timetable.within(program, costs, round(share * arena))
            return emit_schedule(steps, place_arena_within(steps, arena), budgets)
        except FragmentationError:
            continue
        except CapacityError:
            return None
    return None


def _may_be_away(order: Order, choice: Bools, without: frozenset[str]) -> bool:
    """Whether the choice uses none of these means for away gaps and for codes."""
    for gap, taken in zip(order.gaps, choice.tolist(), strict=True):
        coded = gap[0].form != RAW
        means = (CODED_AWAY if coded else AWAY) if taken else (CODED if coded else None)
        if means in without:
            return False
    return True
