"""Where bytes lie, as integers: residencies in the arena and host copies in the slab."""

from .placement import ALIGNMENT, Extent, Stay, aligned, fit, least_nbytes, place, shuffled
from .settling import settle

__all__ = [
    "ALIGNMENT",
    "Extent",
    "Stay",
    "aligned",
    "fit",
    "least_nbytes",
    "place",
    "settle",
    "shuffled",
]
