"""Where bytes lie, as integers: residencies in the arena and host copies in the slab."""

from .extents import ALIGNMENT, Extent, Stay, aligned, least_nbytes
from .fitting import fit
from .placement import place, shuffled
from .settling import in_turn, settle

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
