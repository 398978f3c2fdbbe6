"""Faults to seed into right schedules: each really does harm, so that the checker must refuse it.

A fault proposes mutations in random order. One that breaks a rule by its nature (a budget, a range,
a wait that cannot be) is taken as it is; any other only if the slow oracles see its harm: two steps
race, or the results differ.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from tests.support.faults import addresses, forms, order
from tests.support.schedules.order import races
from tests.support.schedules.results import results
from tvdnn.planner.ir.schedule import Schedule

Mutations = Callable[[Schedule, Random], Iterator[Schedule]]


@dataclass(frozen=True, slots=True)
class Fault:
    """A way to spoil a schedule. `plain` ones break a rule by their nature."""

    mutations: Mutations
    plain: bool = False

    @property
    def name(self) -> str:
        return self.mutations.__name__

    def seed(self, schedule: Schedule, seed: int) -> Schedule | None:
        """`schedule` with this fault, or None where it has no victim for it."""
        right = None if self.plain else results(schedule)
        for mutant in self.mutations(schedule, Random(seed)):
            if self.plain or races(mutant) or results(mutant) != right:
                return mutant
        return None


HARMFUL = (
    order.wait_removed,
    order.bytes_reused_before_offload_ended,
    order.read_before_prefetch,
    order.prefetch_before_its_offload,
    order.copies_swapped,
    order.offload_dropped,
    order.prefetch_dropped,
    order.launch_dropped,
    order.launch_twice,
    order.in_place_pass_skipped,
    order.sum_out_of_order,
    order.reader_before_writer,
    addresses.read_offset_moved,
    addresses.write_offset_moved,
    addresses.residencies_overlap,
    addresses.slab_places_overlap,
    addresses.copies_crossed,
    addresses.partial_overwritten_early,
    forms.range_cut_short,
)
PLAIN = (
    order.wait_on_later_step,
    order.wait_on_no_step,
    order.wait_on_own_lane,
    addresses.offset_unaligned,
    addresses.offset_negative,
    forms.rows_wrong,
    forms.unit_cut,
    forms.operands_exchanged,
    forms.launch_on_copy_lane,
    forms.copy_backwards,
    forms.copy_cut_short,
    forms.residency_ends_early,
    forms.arena_too_small,
    forms.slab_too_small,
    forms.over_budget,
    forms.over_host_budget,
)
FAULTS = (*map(Fault, HARMFUL), *(Fault(mutations, plain=True) for mutations in PLAIN))
