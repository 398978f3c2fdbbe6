"""The profiler: seconds of passes and recodes on the present GPU, and rates of the link.

Measurements are cached on disk.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch

from ..graph import Form, Graph, Pass, Use, is_packed
from ..planner.ir.costs import Forms, Link, Profile, RecodeKind, Samples, form_choices
from ..planner.ir.hardware import ASSUMED_LINKS
from ..planner.ir.plan import FILE, HOST
from ..planner.ir.settings import ENGINE, RULES, Table
from .file_link import measure_file_link
from .known_launches import NOTHING, KnownLaunches, known_launches
from .launch_timer import SCRATCH_NBYTES, PassInForms, Scratch
from .link import measure_link, with_zero_copy
from .profile_cache import ProfileCache
from .recode_timer import estimated_recode, recode_calls, recoded_sizes, recodes_of
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
    known: KnownLaunches | None = None,
    estimates: bool = False,
) -> Profile:
    """Measure every distinct pass of `graph`, and its recodes, on at most `limit` bytes.

    A pass is measured at several run lengths, in each choice of its forms. `copies` is "engine" or
    "kernel": the link is measured with such copies. The rates of `file` are measured on at most
    `file_limit` of its bytes. Parameters and optimizer state are never written. Measurements of
    this GPU, these versions, kernels and `configurations`, and of the file's folder, are taken from
    the cache, and else from `known` launches, those that ship where none are given. With
    `estimates` no further pass or recode of a GPU with a data sheet is measured, nor is a link that
    ships.
    """
    cache, gpu = ProfileCache(device, kernels), torch.cuda.get_device_name(device)
    if known is None:
        known = known_launches(gpu) if kernels == "triton" else NOTHING
    most = SCRATCH_NBYTES if limit is None else min(limit, SCRATCH_NBYTES)
    scratch = Scratch(graph, device, kernels, most, configurations)
    own = [(n, pass_) for n, pass_ in enumerate(graph.passes) if not pass_.ranks]
    launches = [(n, forms) for n, pass_ in own for forms in form_choices(pass_)]
    recodes = _measurable(recodes_of(graph), device, kernels)
    timed = [_timed_pass(graph, scratch, *each) for each in launches]
    timed += [_timed_recode(scratch, recode) for recode in recodes]
    found = {each.key: _find(each.key, cache, known, configurations) for each in timed}
    estimated = frozenset[str]()
    if estimates:
        estimated = _estimate(graph, launches, timed, found, known)
        _estimate_recodes(recodes, timed[len(launches) :], found, known, scratch.limit)
    new = {k.key: each for k, each in zip(timed, launches, strict=False) if found[k.key] is None}
    scratch.compile(new.values(), progress)
    taken = list(_measured(timed, found, scratch, cache, progress))
    del scratch, timed
    links = _links(device, kernels, copies, cache, known if estimates else NOTHING)
    if file is not None:
        if file.place not in cache.links:
            cache.links[file.place] = measure_file_link(file, file_limit)
        links[FILE] = cache.links[file.place]
    cache.save()
    samples: dict[str, dict[frozenset[tuple[str, Form]], Samples]] = {}
    for (index, forms), each in zip(launches, taken, strict=False):
        samples.setdefault(graph.passes[index].name, {})[frozenset(forms)] = each
    recoded = dict(zip(recodes, taken[len(launches) :], strict=True))
    return Profile(gpu, links, samples, recoded, estimated)


def _measurable(
    recodes: tuple[RecodeKind, ...], device: torch.device, kernels: str
) -> tuple[RecodeKind, ...]:
    """The recodes that CUDA graphs take: references of packed codes wait for the GPU."""
    if kernels != "torch" or device.type != "cuda":
        return recodes
    return tuple(each for each in recodes if not any(map(is_packed, each[:2])))


def _estimate(
    graph: Graph,
    launches: Sequence[PassInForms],
    timed: Sequence[_Timed],
    found: dict[str, Samples | None],
    known: KnownLaunches,
) -> frozenset[str]:
    """Fill in launches that were not found by known rates; returns the names of their passes."""
    missing = {key for key, samples in found.items() if samples is None}
    names = set[str]()
    for (index, forms), each in zip(launches, timed, strict=False):
        pass_ = graph.passes[index]
        guess = known.estimate(graph, pass_, forms) if each.key in missing else None
        if guess is not None:
            found[each.key] = guess
            names.add(pass_.name)
    return frozenset(names)


def _estimate_recodes(
    recodes: Sequence[RecodeKind],
    timed: Sequence[_Timed],
    found: dict[str, Samples | None],
    known: KnownLaunches,
    limit: int,
) -> None:
    """Fill in recodes that were not found by the roofline."""
    for recode, each in zip(recodes, timed, strict=True):
        if found[each.key] is None:
            found[each.key] = estimated_recode(recode, limit, known)


def _find(
    key: str, cache: ProfileCache, known: KnownLaunches, configurations: Table
) -> Samples | None:
    """The seconds by the cache, or else those known of kernels without configurations."""
    found = cache.find(key, configurations)
    return known.find(key) if found is None and not configurations else found


def _links(
    device: torch.device, kernels: str, copies: str, cache: ProfileCache, known: KnownLaunches
) -> dict[str, Link]:
    """The links to all tiers, the host's as measured on this machine or as known of its GPU."""
    if copies not in cache.links and copies in known.links:
        return {**ASSUMED_LINKS, HOST: known.links[copies]}
    if copies not in cache.links:
        link = measure_link(device, copies)
        triton = kernels == "triton" and device.type == "cuda"
        cache.links[copies] = with_zero_copy(link, device) if triton else link
    return {**ASSUMED_LINKS, HOST: cache.links[copies]}


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
        recode_signature(recode, scratch.limit),
        lambda: sizes,
        lambda nbytes: scratch.seconds(recode_calls(scratch, recode, nbytes)),
    )


def _measured(
    every: Sequence[_Timed],
    found: dict[str, Samples | None],
    scratch: Scratch,
    cache: ProfileCache,
    progress: Callable[[str, float], None] | None,
) -> Iterator[Samples]:
    """The samples of each, as found or measured now."""
    table = scratch.configurations.table
    if progress is not None:
        progress("profiling", 0.0)
    for number, timed in enumerate(every, 1):
        samples = found[timed.key]
        if samples is None:
            scratch.configurations.requests.clear()
            samples = tuple((size, timed.seconds(size)) for size in timed.sizes())
            cache.add(timed.key, table, scratch.configurations.requests, samples)
            found[timed.key] = samples
        yield samples
        if progress is not None:
            progress("profiling", number / len(every))


def signature(graph: Graph, pass_: Pass, forms: Forms = ()) -> str:
    """The key of the cost of a pass: kind, role, settings, types, shapes and forms.

    A gradient in a bucket has the shape of one that has a buffer of its own.
    """
    op = graph.ops[pass_.op]
    settings = {**op.attrs, **pass_.attrs}
    attrs = sorted((name, value) for name, value in settings.items() if name != "op_id")

    def shape(use: Use) -> tuple[object, ...]:
        buffer = graph.buffers[use.buffer]
        rows = buffer.rows if use.whole else use.per
        chosen = [form for name, form in forms if name == use.buffer]
        sizes = (rows, *(use.shape or buffer.shape[1:]))
        if use.range in graph.param_of_grad:
            sizes = graph.network.params[graph.param_of_grad[use.range]].shape or (1,)
            return (*sizes, buffer.dtype, use.whole, sizes[-1], *chosen)
        return (*sizes, buffer.dtype, use.whole, use.width(buffer), *chosen)

    uses = [shape(use) for use in (*pass_.reads, *pass_.writes)]
    params = [graph.network.params[name].shape for name in (*pass_.params, *pass_.updates) if name]
    kind = (op.kind, pass_.role, graph.dtype, attrs)
    return repr((*kind, uses, params, min(pass_.domain, pass_.unit)))


def recode_signature(recode: RecodeKind, limit: int) -> str:
    """The key of the cost of a recode that is measured on at most `limit` bytes."""
    return repr(("recode", *recode, recoded_sizes(recode, limit)))
