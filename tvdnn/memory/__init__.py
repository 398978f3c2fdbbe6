"""Where bytes lie, as integers: placement of residencies in the arena and of host copies in the slab."""

from .placement import ALIGNMENT, Extent, Stay, place

__all__ = ["ALIGNMENT", "Extent", "Stay", "place"]
