"""Recompute: which maps may be made again, and the plans that make them."""
