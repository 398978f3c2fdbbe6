"""Costs: seconds of launches and rates of copies, by a data sheet's roofline or measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, product
from operator import attrgetter
from typing import Final, Protocol, TypeAlias

from ...graph import Buffer, Collective, Form, Pass, in_form

Forms: TypeAlias = tuple[tuple[str, Form], ...]  # by buffer, forms that a launch reads or leaves
Samples: TypeAlias = tuple[tuple[int, float], ...]  # rows or bytes, and seconds, sorted
# The forms of source and target, of any capacity, and the type of the raw values.
RecodeKind: TypeAlias = tuple[Form, Form, str]


RATES: Final = ("out", "back", "out_duplex", "back_duplex")
# Four programs that encode as TF32 or fp8 store codes at 34 to 46% of the engines' rate, while
# convolutions of VGG-16 take 1.20 to 1.36 times as long
# (bench/encode_to_host.py, H100, 2026-11-26).
ZERO_COPY_SHARE: Final = 0.4
ZERO_COPY_SLOWDOWN: Final = 1.29


@dataclass(frozen=True, slots=True)
class Link:
    """The link to a tier. Rates are in bytes per second."""

    out: float
    back: float
    out_duplex: float  # while the other direction is busy
    back_duplex: float  # while the other direction is busy
    latency_s: float  # of one copy
    # Of kernels that encode to the host themselves, beside persistent convolutions: the share of
    # the rates out at which they store codes, and the factor by which they lengthen launches.
    zero_copy_share: float = ZERO_COPY_SHARE
    zero_copy_slowdown: float = ZERO_COPY_SLOWDOWN

    def scaled(self, out: float, back: float) -> "Link":
        """The link at these multiples of its rates."""
        rates = self.out * out, self.back * back, self.out_duplex * out, self.back_duplex * back
        return replace(self, **dict(zip(RATES, rates, strict=True)))

    def zero_copy_s(self, nbytes: int) -> float:
        """Seconds by which launches get longer while a kernel stores so many bytes of a code."""
        stored_s = self.latency_s + nbytes / (self.out * self.zero_copy_share)
        return stored_s * (1.0 - 1.0 / self.zero_copy_slowdown)


Links: TypeAlias = Mapping[str, Link]  # by tier; the one between processes by RANKS
RANKS: Final = "ranks"
# Launches take so many times as long beside a sum: kernels of persistent programs wait for the
# multiprocessors that it holds. Of 24 blocks in the place of a sum, beside the backward passes of
# ResNet-50 (bench/data_parallel.py, H200, 2026-11-29).
SUM_SLOWDOWN: Final = 1.3


def all_reduce_s(links: Links, ranks: int, nbytes: int) -> float:
    """Seconds in which so many processes sum a buffer of these bytes, in a ring.

    A process sends 2 (ranks - 1) / ranks of the bytes, in 2 (ranks - 1) messages (Patarasuk and
    Yuan, "Bandwidth optimal all-reduce algorithms", 2009). 0 where the link is not known.
    """
    link, messages = links.get(RANKS), 2 * (ranks - 1)
    return 0.0 if link is None else messages * (link.latency_s + nbytes / ranks / link.out)


def collective_s(links: Links, pass_: Pass, nbytes: int) -> float:
    """Seconds of a pass of several processes. One half of an all-reduce scatters, one gathers."""
    halves = 2 if pass_.collective is Collective.ALL_REDUCE else 1
    return all_reduce_s(links, pass_.ranks, nbytes) * halves / 2


class Costs(Protocol):
    """The costs of a machine, as planner and simulator read them."""

    @property
    def hardware(self) -> str:
        """The name of the machine."""
        ...

    @property
    def measured(self) -> bool:
        """True for measured costs, False for a roofline."""
        ...

    @property
    def links(self) -> Links:
        """The links to the tiers that the machine has."""
        ...

    def launch_s(self, pass_: Pass, rows: int, forms: Forms = ()) -> float:
        """Seconds of one launch of `pass_` over `rows` rows of its domain on the compute lane.

        `forms` are those besides raw that it reads or leaves.
        """
        ...

    def recode_s(self, buffer: Buffer, rows: int, source: Form, target: Form) -> float:
        """Seconds of one recode of `rows` rows of a buffer."""
        ...

    def min_pass_s(self, pass_: Pass) -> float:
        """The least seconds of `pass_` over its domain, in any launches and any forms."""
        ...


@dataclass(frozen=True, slots=True)
class Hardware:
    """A machine by its data sheet."""

    name: str
    memory_nbytes: int
    bandwidth: float  # of device memory, in bytes per second
    flops: Mapping[str, float]  # by compute type ("bf16", "tf32", "fp32"), peak FLOP/s
    efficiency: float  # assumed share of peak FLOP/s
    memory_efficiency: float  # assumed share of bandwidth
    launch_s: float  # overhead of one launch
    links: Links
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Roofline:
    """Costs by the roofline model (Williams 2009): overhead, then the longer of work and traffic.

    A launch over part of a pass's rows has that share of its FLOPs and bytes.
    """

    profile: Hardware
    dtype: str

    @property
    def hardware(self) -> str:
        return self.profile.name

    @property
    def measured(self) -> bool:
        return False

    @property
    def links(self) -> Links:
        return self.profile.links

    def launch_s(self, pass_: Pass, rows: int, forms: Forms = ()) -> float:
        if pass_.ranks:
            return 0.0
        share = rows / pass_.domain
        flops_s = pass_.flops * share / (self.profile.flops[self.dtype] * self.profile.efficiency)
        nbytes = pass_.nbytes + sum(pass_.form_nbytes[each] for each in forms)
        return self.profile.launch_s + max(flops_s, self._bytes_s(nbytes * share))

    def recode_s(self, buffer: Buffer, rows: int, source: Form, target: Form) -> float:
        row_nbytes = in_form(buffer, source).row_nbytes + in_form(buffer, target).row_nbytes
        return self.profile.launch_s + self._bytes_s(rows * row_nbytes)

    def _bytes_s(self, nbytes: float) -> float:
        return nbytes / (self.profile.bandwidth * self.profile.memory_efficiency)

    def min_pass_s(self, pass_: Pass) -> float:
        shorter = tuple(each for each, nbytes in pass_.form_nbytes.items() if nbytes < 0)
        return self.launch_s(pass_, pass_.domain, shorter)


@dataclass(frozen=True, slots=True)
class Profile:
    """Costs measured on a GPU, interpolated linearly between samples.

    Those of `estimated` passes follow from the GPU's data sheet, and from launches of the same
    kernel on other sizes where such are known.
    """

    hardware: str
    links: Links
    # By pass name, and by the forms besides raw: samples over rows.
    samples: Mapping[str, Mapping[frozenset[tuple[str, Form]], Samples]]
    recodes: Mapping[RecodeKind, Samples] = field(default_factory=dict)  # over bytes of raw values
    estimated: frozenset[str] = frozenset()  # names of passes

    @property
    def measured(self) -> bool:
        return True

    def launch_s(self, pass_: Pass, rows: int, forms: Forms = ()) -> float:
        if pass_.ranks:
            return 0.0
        return _interpolated(self.samples[pass_.name][frozenset(forms)], rows)

    def recode_s(self, buffer: Buffer, rows: int, source: Form, target: Form) -> float:
        points = self.recodes[Form(source.codec), Form(target.codec), buffer.dtype]
        return _interpolated(points, max(points[0][0], rows * buffer.row_nbytes))

    def min_pass_s(self, pass_: Pass) -> float:
        """The domain at the least seconds a row, which interpolation has at a sample."""
        if pass_.ranks:
            return 0.0
        points = chain.from_iterable(self.samples[pass_.name].values())
        return pass_.domain * min(seconds / rows for rows, seconds in points)


def slowest(costs: Sequence[Costs]) -> Costs:
    """The costs of machines that work together: of each launch and recode those of the slowest.

    What the first has not measured, or all have by the same data sheet, is as the first has it.
    """
    first, *others = costs
    profiles = [each for each in others if isinstance(each, Profile)]
    if not isinstance(first, Profile):
        return first
    samples = {
        name: {
            forms: _slowest(points, [each.samples.get(name, {}).get(forms) for each in profiles])
            for forms, points in by_forms.items()
        }
        for name, by_forms in first.samples.items()
    }
    recodes = {
        kind: _slowest(points, [each.recodes.get(kind) for each in profiles])
        for kind, points in first.recodes.items()
    }
    links = {
        tier: min((link, *(each.links.get(tier, link) for each in profiles)), key=attrgetter("out"))
        for tier, link in first.links.items()
    }
    return replace(first, links=links, samples=samples, recodes=recodes)


def _slowest(points: Samples, others: Sequence[Samples | None]) -> Samples:
    """Samples at the first's sizes, with the seconds of the slowest that has the same sizes."""
    sizes = [size for size, _ in points]
    same = [each for each in others if each and [size for size, _ in each] == sizes]
    return tuple(
        (size, max(each[number][1] for each in (points, *same)))
        for number, size in enumerate(sizes)
    )


def _interpolated(points: Samples, size: int) -> float:
    """Seconds at a size. Beyond the samples they are in proportion to it."""
    below = max((p for p in points if p[0] <= size), default=points[0])
    above = min((p for p in points if p[0] >= size), default=points[-1])
    if below[0] == above[0]:
        return below[1] * size / below[0]
    slope = (above[1] - below[1]) / (above[0] - below[0])
    return below[1] + slope * (size - below[0])


def num_ranges(splits: int, sums: int) -> int:
    """The ranges of splits that a weight gradient with so many rows of sums takes in turn.

    Each takes as long as all splits at once, at most: these fill the GPU about once.
    """
    return 1 if sums >= splits else -(-splits // (sums - 1))


def form_choices(pass_: Pass) -> tuple[Forms, ...]:
    """The forms besides raw that a launch of a pass may read and leave, raw alone first."""
    read = {use.buffer: use.forms for use in pass_.reads}
    left = dict.fromkeys((use.buffer, form) for use in pass_.writes for form in use.also)
    choices = [[None, *((name, form) for form in forms)] for name, forms in read.items()]
    choices += [[None, code] for code in left]
    return tuple(tuple(each for each in chosen if each) for chosen in product(*choices))
