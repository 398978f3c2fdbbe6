"""Capture of CUDA graphs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..gc_pause import without_collection


@contextmanager
def capture(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream, pool: Any) -> Iterator[None]:
    """Capture into `graph` all work that this thread issues on `stream` inside the context.

    Allocations go into `pool`, which `torch.cuda.graph_pool_handle` made. `torch.cuda.graph` would
    empty the cache of torch's allocator each time. Freeing another graph would end the capture.
    Garbage collection is paused for that reason.
    """
    with without_collection(), torch.cuda.stream(stream):
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            yield
        finally:
            graph.capture_end()


@contextmanager
def fork_join(main: torch.cuda.Stream, others: Sequence[torch.cuda.Stream]) -> Iterator[None]:
    """Fork `others` from `main` on entry. On exit `main` waits for them."""
    for stream in others:
        stream.wait_stream(main)
    try:
        yield
    finally:  # a capture may end, and memory may be freed, only after the join
        for stream in others:
            main.wait_stream(stream)
