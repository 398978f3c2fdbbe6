"""What a training step computes, as pure data: the traced network, its buffers and its passes."""

from .buffer import DTYPE_NBYTES, RUN_CHUNKS, Buffer, ChunkSizes, Kind, map_class, section_rows
from .fusion import QUARTER, channels_per_code_byte, fuse
from .network import Network, Op, Param, Value
from .passes import Direction, Graph, Need, Pass, Use, meet, must_part
from .variants import GraphVariants

__all__ = [
    "DTYPE_NBYTES",
    "QUARTER",
    "RUN_CHUNKS",
    "Buffer",
    "ChunkSizes",
    "Direction",
    "Graph",
    "GraphVariants",
    "Kind",
    "Need",
    "Network",
    "Op",
    "Param",
    "Pass",
    "Use",
    "Value",
    "channels_per_code_byte",
    "fuse",
    "map_class",
    "meet",
    "must_part",
    "section_rows",
]
