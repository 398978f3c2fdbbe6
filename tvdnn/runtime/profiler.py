"""The profiler: seconds of each pass on the present GPU, and rates of the link. Cached on disk."""

from collections.abc import Callable

import torch

from ..graph import Graph, Pass, Use
from ..planner.ir.costs import Profile
from ..planner.ir.settings import ENGINE, RULES, Table
from .launch_timer import SCRATCH_NBYTES, Scratch
from .link import measure_link
from .profile_cache import ProfileCache, Samples


def profile(
    graph: Graph,
    *,
    device: torch.device,
    kernels: str,
    limit: int | None = None,
    copies: str = ENGINE,
    configurations: Table = RULES,
    progress: Callable[[str, float], None] | None = None,
) -> Profile:
    """Measure every distinct pass of `graph` at several run lengths, on at most `limit` bytes.

    `copies` is "engine" or "kernel": the link is measured with such copies. Parameters and
    optimizer state are never written. Measurements of this GPU, these versions, kernels and
    `configurations` are taken from the cache.
    """
    cache = ProfileCache(device, kernels)
    samples: Samples = {}
    most = SCRATCH_NBYTES if limit is None else min(limit, SCRATCH_NBYTES)
    keys = [signature(graph, pass_) for pass_ in graph.passes]
    new = {k: index for index, k in enumerate(keys) if cache.find(k, configurations) is None}
    scratch = Scratch(graph, device, kernels, most, configurations)
    scratch.compile(new.values())
    for index, (pass_, key) in enumerate(zip(graph.passes, keys, strict=True)):
        found = cache.find(key, configurations)
        if found is None:
            counts = scratch.row_counts(pass_)
            scratch.configurations.requests.clear()
            found = tuple((rows, scratch.measure(index, rows)) for rows in counts)
            cache.add(key, configurations, scratch.configurations.requests, found)
        samples[pass_.name] = found
        if progress is not None:
            progress("profiling", (index + 1) / len(graph.passes))
    del scratch
    if copies not in cache.links:
        cache.links[copies] = measure_link(device, copies)
    cache.save()
    return Profile(torch.cuda.get_device_name(device), cache.links[copies], samples)


def signature(graph: Graph, pass_: Pass) -> str:
    """The key of the cost of a pass: kind, role, settings, types and shapes."""
    op = graph.ops[pass_.op]
    settings = {**op.attrs, **pass_.attrs}
    attrs = sorted((name, value) for name, value in settings.items() if name != "op_id")

    def shape(use: Use) -> tuple[object, ...]:
        buffer = graph.buffers[use.buffer]
        rows = buffer.rows if use.whole else use.per
        return (rows, *(use.shape or buffer.shape[1:]), buffer.dtype, use.whole, use.width(buffer))

    uses = [shape(use) for use in (*pass_.reads, *pass_.writes)]
    params = [graph.network.params[name].shape for name in (*pass_.params, *pass_.updates) if name]
    form = (op.kind, pass_.role, graph.dtype, attrs)
    return repr((*form, uses, params, min(pass_.domain, pass_.unit)))
