"""Launch lengths: the longest whose bytes are free, halved launch by launch."""

from itertools import pairwise
from math import lcm

import pytest

from tests.support.networks import pooled
from tvdnn.graph import Graph
from tvdnn.ops import Settings, expand
from tvdnn.optim import SGD
from tvdnn.planner.ir.plan import Plan, Segment
from tvdnn.planner.lowering.build_program import build_program
from tvdnn.planner.lowering.launch_lengths import with_launches_of, with_longest_launches
from tvdnn.planner.lowering.list_scheduler import required_nbytes
from tvdnn.planner.lowering.segments import Variant, segments
from tvdnn.units import KIB

BATCH = 32


@pytest.fixture(scope="module")
def graph() -> Graph:
    """Sections of one to four samples."""
    network = pooled((BATCH, 8, 8, 3), 8)
    return expand(network, Settings("fp32", 2 * KIB, optimizer=SGD(), fuse=False))


@pytest.fixture(scope="module")
def whole(graph: Graph) -> Plan:
    return Plan("whole", segments(graph, {}, Variant.KEEP))


def peak_nbytes(graph: Graph, plan: Plan) -> int:
    return int(required_nbytes(build_program(graph, plan)).max())


def shortest(graph: Graph, plan: Plan) -> Plan:
    return with_longest_launches(graph, plan, 0)


def num_launches(graph: Graph, plan: Plan) -> int:
    return len(build_program(graph, plan).launches)


def lengths(graph: Graph, segment: Segment) -> list[int]:
    """The samples of each slot's launches."""
    domain = graph.passes[segment.slots[0].pass_index].domain
    return [slot.run or segment.block or domain for slot in segment.slots]


def units(graph: Graph, segment: Segment) -> list[int]:
    return [graph.passes[slot.pass_index].unit for slot in segment.slots]


def test_with_room_for_all_layers_go_whole(graph: Graph, whole: Plan) -> None:
    assert with_longest_launches(graph, whole, peak_nbytes(graph, whole)) == whole


def test_only_launches_without_room_are_halved(graph: Graph, whole: Plan) -> None:
    """A byte less than the fullest launch needs: its layer alone goes in two halves."""
    program = build_program(graph, whole)
    required = required_nbytes(program)
    full = {program.launches[at].segment for at in (required == required.max()).nonzero()[0]}
    found = with_longest_launches(graph, whole, int(required.max()) - 1)
    changed = {at for at, segment in enumerate(found.segments) if segment != whole.segments[at]}
    assert changed == full
    for at in changed:
        assert max(lengths(graph, found.segments[at])) == BATCH // 2


def test_less_room_makes_more_launches_and_none_is_over(graph: Graph, whole: Plan) -> None:
    most, least = peak_nbytes(graph, whole), peak_nbytes(graph, shortest(graph, whole))
    assert least < 0.8 * most
    counts = []
    for share in (1.0, 0.75, 0.5, 0.25, 0.0):
        limit = least + round(share * (most - least))
        found = with_longest_launches(graph, whole, limit)
        assert peak_nbytes(graph, found) <= limit
        counts.append(num_launches(graph, found))
    assert all(one <= other for one, other in pairwise(counts))
    assert counts[0] < counts[-1] <= num_launches(graph, shortest(graph, whole))


def test_a_block_holds_the_largest_unit_and_others_go_through_it_in_runs(
    graph: Graph, whole: Plan
) -> None:
    """A pass on maps of several samples a section has a larger unit than one on large maps."""
    mixed = [each for each in whole.segments if len({*units(graph, each)}) > 1]
    assert mixed
    for segment in mixed:
        found = with_launches_of(graph, segment, 1)
        block = min(BATCH, lcm(*units(graph, segment)))
        assert found.block == (block if block < BATCH else 0)
        assert lengths(graph, found) == units(graph, segment)
        assert any(slot.run for slot in found.slots)


@pytest.mark.parametrize("rows", [1, 3, 8, 31, 32])
def test_lengths_are_multiples_of_units(graph: Graph, whole: Plan, rows: int) -> None:
    for segment in whole.segments:
        found = with_launches_of(graph, segment, rows)
        for length, unit in zip(lengths(graph, found), units(graph, segment), strict=True):
            assert length == min(BATCH, -(-rows // unit) * unit)
