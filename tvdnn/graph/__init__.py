"""A training step as pure data: the traced network, its buffers and its passes."""

from .buffer import (
    DTYPE_NBYTES,
    RUN_CHUNKS,
    Buffer,
    ChunkSizes,
    Fact,
    Kind,
    section_rows,
    size_class,
)
from .forms import BITS, CODECS, RAW, Codec, Form, in_form
from .fusion import POOL_2X2, channels_per_code_byte, fuse
from .network import Network, Op, Param, Value
from .passes import Direction, Graph, Need, Pass, Use, must_be_separate, overlap
from .variants import GraphVariants

__all__ = [
    "BITS",
    "CODECS",
    "DTYPE_NBYTES",
    "POOL_2X2",
    "RAW",
    "RUN_CHUNKS",
    "Buffer",
    "ChunkSizes",
    "Codec",
    "Direction",
    "Fact",
    "Form",
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
    "in_form",
    "must_be_separate",
    "overlap",
    "section_rows",
    "size_class",
]
