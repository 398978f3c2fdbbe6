"""Faults to seed into right schedules. Each does harm, and the checker must refuse it.

A fault proposes mutations in random order. One that breaks a rule by its nature (a budget, a range,
a wait that cannot be) is taken as it is; any other only if the slow oracles see its harm: two steps
race, or the results differ.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import isfunction
from random import Random
from types import ModuleType

from tests.support.faults import (
    addresses,
    code_copies,
    codes,
    decodes,
    forms,
    order,
    recodes,
    tails,
    tiers,
)
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


def mutations_of(*modules: ModuleType) -> Iterator[Mutations]:
    """The public functions that modules define."""
    for module in modules:
        for name, value in vars(module).items():
            if isfunction(value) and value.__module__ == module.__name__ and name[0] != "_":
                yield value


PLAIN = {
    order.wait_on_later_step,
    order.wait_on_no_step,
    order.wait_on_own_lane,
    addresses.offset_unaligned,
    addresses.offset_negative,
    *mutations_of(forms),
} - {forms.range_cut_short}
FAULTS = tuple(
    Fault(mutations, plain=mutations in PLAIN)
    for mutations in mutations_of(order, addresses, forms)
)
HARMFUL = tuple(fault.mutations for fault in FAULTS if not fault.plain)

CODES_HARMFUL = {
    codes.code_of_another_buffer,
    codes.code_not_left,
    codes.code_left_of_an_earlier_version,
    codes.code_offset_moved,
    codes.codes_exchanged,
    codes.code_overlaps_a_section,
    codes.code_read_before_it_is_made,
    codes.code_read_without_waiting,
    codes.code_offloaded_without_waiting,
    recodes.recode_dropped,
    recodes.recode_cut_short,
    recodes.recode_too_late,
    recodes.recode_too_early,
    decodes.decode_of_other_rows,
    decodes.decode_before_the_prefetch,
    decodes.decode_after_its_reader,
    decodes.code_overwritten_by_another_version,
}
CODE_FAULTS = tuple(
    Fault(mutations, plain=mutations not in CODES_HARMFUL)
    for mutations in mutations_of(codes, code_copies, decodes, recodes)
)

TAILS_HARMFUL = {
    tails.tails_exchanged,
    tails.tail_moved,
    tails.tail_reused_early,
    tails.tails_overlap,
    tails.code_packed_twice,
    tails.decode_before_encode,
}
TAIL_FAULTS = tuple(
    Fault(mutations, plain=mutations not in TAILS_HARMFUL) for mutations in mutations_of(tails)
)

TIERS_PLAIN = {
    tiers.file_offset_unaligned,
    tiers.file_copied_on_the_other_lane,
    tiers.file_written_from_the_device,
    tiers.file_too_small,
    tiers.file_above_its_budget,
    tiers.update_before_a_read_of_the_file,
    tiers.peer_copied_on_the_lane_of_the_host,
    tiers.peer_too_small,
    tiers.peer_above_its_budget,
}
TIER_FAULTS = tuple(
    Fault(mutations, plain=mutations in TIERS_PLAIN) for mutations in mutations_of(tiers)
)
TIERS_HARMFUL = tuple(fault.mutations for fault in TIER_FAULTS if not fault.plain)
