"""Memory placement: integer offsets of residencies in the arena and of host copies in the slab."""

from .bounded import first_fit_bounded
from .intervals import ALIGNMENT, AllocationGroup, BufferInterval, aligned, lower_bound_nbytes
from .search import assign_offsets, restart_randomly
from .soft import assign_offsets_soft, placement_priority

__all__ = [
    "ALIGNMENT",
    "AllocationGroup",
    "BufferInterval",
    "aligned",
    "assign_offsets",
    "assign_offsets_soft",
    "first_fit_bounded",
    "lower_bound_nbytes",
    "placement_priority",
    "restart_randomly",
]
