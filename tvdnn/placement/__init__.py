"""Where bytes lie, as integers: residencies in the arena and host copies in the slab."""

from .bounded import fit
from .intervals import ALIGNMENT, Extent, Stay, aligned, least_nbytes
from .search import place, shuffled
from .soft import in_turn, settle

__all__ = [
    "ALIGNMENT",
    "Extent",
    "Stay",
    "aligned",
    "fit",
    "in_turn",
    "least_nbytes",
    "place",
    "settle",
    "shuffled",
]
