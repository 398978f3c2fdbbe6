"""SuperNeurons (Wang et al., PPoPP 2018): dear maps leave, cheap ones are made again.

Outputs of convolutions are checkpoints. They are offloaded after their last use in forward. The
convolution before in backward issues their prefetch. The maps between checkpoints are made again
in backward, for a segment once (`:speed`), for every layer (`:memory`), or as suits the memory of
each segment (`:costaware`). With `:lru` checkpoints leave only where bytes are short. Launches are
as long as the free bytes allow.

Our own choices: the network's inputs, outputs of layers of several inputs, and cheap maps behind a
convolution whose output backward does not read, are checkpoints too. Linear layers' outputs stay.
Sections leave one by one. All is decided before the step. Where the paper picks a convolution's
algorithm by its workspace, launches are shorter here. A weight gradient that fits at no length has
fewer of its partial sums at a time, and takes one range of splits after the other. Its bits stay.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeAlias

from ...graph import Direction, Graph
from ...placement.cuda_blocks import usable_nbytes
from ..ir.costs import Costs
from ..ir.plan import Plan, Segment
from ..ir.schedule import Schedule
from ..lowering.build_program import build_program
from ..lowering.idle import IdleInterval, bridges_of, forward_backward_idle, intra_pass_idle
from ..lowering.launch_lengths import with_fewest_sums, with_longest_launches
from ..lowering.launch_limits import Array
from ..lowering.list_scheduler import required_nbytes
from ..lowering.program import Program
from ..lowering.segments import Variant, in_blocks, pass_groups
from ..offload.tensor_cache import least_recently_used
from ..problem import GraphProblem, Policy
from ..recompute.checkpoints import CONV, Checkpoints, SegmentMode, find_checkpoints
from ..recompute.supplies import Supplies
from ..recompute.weave import PassRun, weave

Chooser: TypeAlias = Callable[[int], Plan | None]  # the plan within so many bytes

NAME = "superneurons"
# Shares of the arena that launches may fill: copies ahead of their uses, and gaps, have the rest.
SHARES = (1.0, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5)


@dataclass(frozen=True, slots=True)
class _Order:
    """The passes of a step with all that is made again, in whole batches."""

    graph: Graph
    checkpoints: Checkpoints
    whole: tuple[Segment, ...]

    @classmethod
    def of(cls, problem: GraphProblem, mode: SegmentMode | None) -> "_Order":
        """By a mode of recompute; None recomputes nothing."""
        graph, known = problem.graph, problem.once(_checkpoints)
        runs = [PassRun(tuple(group), Variant.KEEP, joins=False) for group in pass_groups(graph)]
        made = {} if mode is None else known.made(mode)
        parts = weave(graph, problem.once(_supplies), runs, made, Variant.KEEP)
        return cls(graph, known, tuple(parts))

    def in_blocks(self, block: Variant) -> tuple[Segment, ...]:
        return tuple(in_blocks(self.graph, each.slots, block) for each in self.whole)

    def idle(self, program: Program, *, every_interval: bool) -> list[IdleInterval]:
        """When checkpoints may be away: between forward and backward, or between any two uses."""
        found = forward_backward_idle(program)
        found += intra_pass_idle(program) if every_interval else ()
        windows = _Windows(program)
        return [
            replace(idle, earliest_prefetch=windows.earliest(idle))
            for idle in found
            if idle.buffer in self.checkpoints.offloaded
        ]

    def plan(self, name: str, segments: tuple[Segment, ...], offloaded: list[IdleInterval]) -> Plan:
        """The plan of these segments that offloads sections in these idle intervals."""
        reasons = {idle.buffer: "checkpoint" for idle in offloaded}
        remade = (name for each in self.checkpoints.segments for name in sorted(each.maps))
        again = {
            buffer
            for segment in segments
            for slot in segment.slots
            if slot.recompute
            for buffer in self.graph.passes[slot.pass_index].written_buffers
        }
        reasons |= {buffer: "between checkpoints" for buffer in remade if buffer in again}
        return Plan(name, segments, tuple(bridges_of(offloaded)), reasons=reasons)


class _Windows:
    """The slots at which convolutions begin backward: there the next one's maps are fetched."""

    def __init__(self, program: Program) -> None:
        graph, slots = program.graph, program.plan.slots
        passes = [graph.passes[slot.pass_index] for slot in slots]
        begins: dict[str, int] = {}  # by op, backward
        for number, pass_ in enumerate(passes):
            if pass_.direction is Direction.BACKWARD and not slots[number].recompute:
                begins.setdefault(pass_.op, number)
        convs = (number for op, number in begins.items() if graph.vdnn_traits.get(op) == CONV)
        self._convs = sorted(convs)
        self._layers: list[int] = []  # by slot, the first slot of the layer that it runs or serves
        first = len(slots)
        for number in reversed(range(len(slots))):
            if not slots[number].recompute:
                first = begins.get(passes[number].op, number)
            self._layers.append(min(first, number))
        self._layers.reverse()

    def earliest(self, idle: IdleInterval) -> int:
        """The start of the last convolution before the layer that needs the section back."""
        at = bisect_left(self._convs, self._layers[idle.needed_by])
        return max(idle.earliest_prefetch, self._convs[at - 1] if at else 0)


def _supplies(graph: Graph, costs: Costs) -> Supplies:
    return Supplies(graph)


def _checkpoints(graph: Graph, costs: Costs) -> Checkpoints:
    return find_checkpoints(Supplies(graph))


def _eager_plan(order: _Order, name: str, block: Variant) -> Plan:
    """The plan that offloads all checkpoints between forward and backward."""
    segments = order.in_blocks(block)
    program = build_program(order.graph, Plan(name, segments))
    return order.plan(name, segments, order.idle(program, every_interval=False))


def _tensor_cache(order: _Order, name: str) -> Chooser:
    """The plans of tensor caches by their bytes, in whole batches; None for one too small.

    Layers count as in runs that fill the GPU or, where these do not fit, as in their least blocks.
    """

    @cache
    def known(block: Variant) -> tuple[Array, list[IdleInterval]]:
        program = build_program(order.graph, Plan(name, order.in_blocks(block)))
        return required_nbytes(program), order.idle(program, every_interval=True)

    def choose(limit: int) -> Plan | None:
        for block in (Variant.PERFORMANCE, Variant.MEMORY):
            offloaded = least_recently_used(*known(block), limit)
            if offloaded is not None:
                return order.plan(name, order.whole, offloaded)
        return None

    return choose


def _plans(problem: GraphProblem, name: str, mode: SegmentMode, *, cached: bool) -> Iterator[Plan]:
    """Plans inside the budget, the longest launches first."""
    order, arena = _Order.of(problem, mode), problem.budgets.arena
    all_offloaded = _eager_plan(order, name, Variant.KEEP)
    if arena is None:
        yield order.plan(name, order.whole, []) if cached else all_offloaded
        return
    choose = _tensor_cache(order, name) if cached else lambda _: all_offloaded
    before: Plan | None = None
    for share in SHARES:
        limit = usable_nbytes(round(share * arena))
        plan = choose(limit)
        if plan is None:
            return
        plan = with_longest_launches(problem.graph, plan, limit)
        if plan != before:
            yield plan
        before = plan


def _leanest(
    problem: GraphProblem, name: str, mode: SegmentMode, *, cached: bool
) -> Iterator[Plan]:
    """Plans that offload all checkpoints: in the smallest blocks, and in the fewest sums."""
    order = _Order.of(problem, mode)
    segments = order.in_blocks(Variant.MEMORY)
    program = build_program(problem.graph, Plan(name, segments))
    shortest = order.plan(name, segments, order.idle(program, every_interval=cached))
    yield shortest
    yield with_fewest_sums(problem.graph, shortest, order.whole)


def _ladder(problem: GraphProblem, name: str, mode: SegmentMode) -> Iterator[tuple[str, Plan]]:
    """Plans of whole batches with more means each, at last in the least launches and sums."""
    none, order = _Order.of(problem, None), _Order.of(problem, mode)
    yield "+ liveness", none.plan(name, none.whole, [])
    yield "+ offload", _eager_plan(none, name, Variant.KEEP)
    yield "+ recompute", _eager_plan(order, name, Variant.KEEP)
    shortest = _eager_plan(order, name, Variant.MEMORY)
    yield "+ shortest launches", shortest
    yield "+ fewest sums", with_fewest_sums(problem.graph, shortest, order.whole)


def _policy(name: str, mode: SegmentMode, *, cached: bool) -> Policy:
    def schedule(problem: GraphProblem) -> Schedule | None:
        return problem.first_that_fits(_plans(problem, name, mode, cached=cached))

    def leanest(problem: GraphProblem) -> Iterator[Plan]:
        return _leanest(problem, name, mode, cached=cached)

    def ladder(problem: GraphProblem) -> Iterator[tuple[str, Plan]]:
        return _ladder(problem, name, mode)

    traits = {"fused": False, "recomputes": True}
    return Policy(name, schedule, leanest, **traits, ladder=None if cached else ladder)


def _policies() -> Iterator[Policy]:
    modes = {"": SegmentMode.COSTAWARE} | {f":{mode.value}": mode for mode in SegmentMode}
    for suffix, mode in modes.items():
        for cached in (False, True):
            yield _policy(NAME + suffix + ":lru" * cached, mode, cached=cached)


POLICIES = tuple(_policies())
