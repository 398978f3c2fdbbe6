"""The profiler: seconds of passes and recodes on the present GPU, and rates of the link.

Measurements are cached on disk.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch

from ..graph import Form, Graph, Pass, Use, is_packed
from ..planner.ir.costs import Forms, Profile, RecodeKind, Samples, form_choices
from ..planner.ir.hardware import ASSUMED_LINKS
from ..planner.ir.plan import FILE, HOST
from ..planner.ir.settings import ENGINE, RULES, Table
from .file_link import measure_file_link
from .launch_timer import SCRATCH_NBYTES, Scratch
from .link import measure_link, with_zero_copy
from .profile_cache import ProfileCache
from .recode_timer import recode_calls, recoded_sizes, recodes_of
from .section_file import SectionFile


class _Timed(NamedTuple):
    """A pass in some forms, or a recode: its key in the cache, and its seconds at some sizes.

    Sizes are in rows of a pass, in bytes of raw values of a recode.
    """

    key: str
    sizes: Callable[[], Sequence[int]]
    seconds: Callable[[int], float]


def profile(
    graph: Graph,
    *,
    device: torch.device,
    kernels: str,
    limit: int | None = None,
    copies: str = ENGINE,
    configurations: Table = RULES,
    file: SectionFile | None = None,
    file_limit: int | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Profile:
    """Measure every distinct pass of `graph`, and its recodes, on at most `limit` bytes.

    A pass is measured at several run lengths, in each choice of its forms. `copies` is "engine" or
    "kernel": the link is measured with such copies. The rates of `file` are measured on at most
    `file_limit` of its bytes. Parameters and optimizer state are never written. Measurements of
    this GPU, these versions, kernels and `configurations`, and of the file's folder, are taken from
    the cache.
    """
    cache = ProfileCache(device, kernels)
    most = SCRATCH_NBYTES if limit is None else min(limit, SCRATCH_NBYTES)
    launches = [
        (index, forms) for index, pass_ in enumerate(graph.passes) for forms in form_choices(pass_)
    ]
    recodes = recodes_of(graph)
    # References of packed codes wait for the GPU. No CUDA graph takes them.
    if kernels == "torch" and device.type == "cuda":
        recodes = tuple(each for each in recodes if not any(map(is_packed, each[:2])))
    scratch = Scratch(graph, device, kernels, most, configurations)
    timed = [_timed_pass(graph, scratch, *each) for each in launches]
    keys = [each.key for each in timed]
    new = {
        k: each for k, each in zip(keys, launches, strict=True) if not cache.find(k, configurations)
    }
    scratch.compile(new.values(), progress)
    if progress is not None:
        progress("profiling", 0.0)
    timed += [_timed_recode(scratch, recode) for recode in recodes]
    found = list(_measured(timed, scratch, cache, progress))
    del scratch, timed
    if copies not in cache.links:
        link = measure_link(device, copies)
        triton = kernels == "triton" and device.type == "cuda"
        cache.links[copies] = with_zero_copy(link, device) if triton else link
    links = {**ASSUMED_LINKS, HOST: cache.links[copies]}
    if file is not None:
        if file.place not in cache.links:
            cache.links[file.place] = measure_file_link(file, file_limit)
        links[FILE] = cache.links[file.place]
    cache.save()
    samples: dict[str, dict[frozenset[tuple[str, Form]], Samples]] = {}
    for (index, forms), each in zip(launches, found, strict=False):
        samples.setdefault(graph.passes[index].name, {})[frozenset(forms)] = each
    recoded = dict(zip(recodes, found[len(launches) :], strict=True))
    return Profile(torch.cuda.get_device_name(device), links, samples, recoded)


def _timed_pass(graph: Graph, scratch: Scratch, index: int, forms: Forms) -> _Timed:
    pass_ = graph.passes[index]
    return _Timed(
        signature(graph, pass_, forms),
        partial(scratch.row_counts, pass_, forms),
        partial(scratch.measure, index, forms=forms),
    )


def _timed_recode(scratch: Scratch, recode: RecodeKind) -> _Timed:
    sizes = recoded_sizes(recode, scratch.limit)
    return _Timed(
        repr(("recode", *recode, sizes)),
        lambda: sizes,
        lambda nbytes: scratch.seconds(recode_calls(scratch, recode, nbytes)),
    )


def _measured(
    every: Sequence[_Timed],
    scratch: Scratch,
    cache: ProfileCache,
    progress: Callable[[str, float], None] | None,
) -> Iterator[Samples]:
    """The samples of each, from the cache or measured now."""
    table = scratch.configurations.table
    for number, timed in enumerate(every, 1):
        found = cache.find(timed.key, table)
        if found is None:
            scratch.configurations.requests.clear()
            found = tuple((size, timed.seconds(size)) for size in timed.sizes())
            cache.add(timed.key, table, scratch.configurations.requests, found)
        yield found
        if progress is not None:
            progress("profiling", number / len(every))


def signature(graph: Graph, pass_: Pass, forms: Forms = ()) -> str:
    """The key of the cost of a pass: kind, role, settings, types, shapes and forms."""
    op = graph.ops[pass_.op]
    settings = {**op.attrs, **pass_.attrs}
    attrs = sorted((name, value) for name, value in settings.items() if name != "op_id")

    def shape(use: Use) -> tuple[object, ...]:
        buffer = graph.buffers[use.buffer]
        rows = buffer.rows if use.whole else use.per
        chosen = [form for name, form in forms if name == use.buffer]
        sizes = (rows, *(use.shape or buffer.shape[1:]))
        return (*sizes, buffer.dtype, use.whole, use.width(buffer), *chosen)

    uses = [shape(use) for use in (*pass_.reads, *pass_.writes)]
    params = [graph.network.params[name].shape for name in (*pass_.params, *pass_.updates) if name]
    kind = (op.kind, pass_.role, graph.dtype, attrs)
    return repr((*kind, uses, params, min(pass_.domain, pass_.unit)))
