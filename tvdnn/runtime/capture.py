"""CUDA graphs, captured."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..gc_pause import without_collection


@contextmanager
def capture(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream, pool: Any) -> Iterator[None]:
    """Within, what this thread issues on the stream goes into the graph.

    What it allocates goes into the pool, which `torch.cuda.graph_pool_handle` made.
    `torch.cuda.graph` would free all that torch has cached, each time. No other graph may be freed
    meanwhile, which would end the capture: so garbage is not collected.
    """
    with without_collection(), torch.cuda.stream(stream):
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            yield
        finally:
            graph.capture_end()


@contextmanager
def fork_join(main: torch.cuda.Stream, others: Sequence[torch.cuda.Stream]) -> Iterator[None]:
    """Within, others go on from where `main` is; behind, `main` waits for them."""
    for stream in others:
        stream.wait_stream(main)
    try:
        yield
    finally:  # a capture ends, and memory is given back, behind them only
        for stream in others:
            main.wait_stream(stream)
