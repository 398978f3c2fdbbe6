"""CUDA graphs, captured."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def capturing(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream, pool: Any) -> Iterator[None]:
    """Within, what this thread issues on the stream goes into the graph.

    What it allocates goes into the pool, which `torch.cuda.graph_pool_handle` made.
    `torch.cuda.graph` would free all that torch has cached, each time. No other graph may be freed
    meanwhile, which would end the capture: so garbage is not collected.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.stream(stream):
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                yield
            finally:
                graph.capture_end()
    finally:
        if collects:
            gc.enable()
