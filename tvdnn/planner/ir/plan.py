"""Plan: the decision for every buffer and the order of the passes, without times or addresses."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from ...graph import RAW, Form, Graph, in_form, is_lossy

# The tiers of memory in which sections rest away from the device.
HOST: Final = "host"  # pinned host memory
FILE: Final = "file"  # on a local disk, through pinned host memory
PEER: Final = "peer"  # the memory of another GPU
TIERS: Final = (HOST, FILE, PEER)


@dataclass(frozen=True, slots=True)
class Slot:
    """One occurrence of a pass in the plan. A recomputed pass occurs again, later."""

    pass_index: int
    run: int = 0  # most domain rows of one launch; 0: the whole block
    recompute: bool = False
    sums: int = 0  # rows of a weight gradient's sums; 0: all. Fewer take more launches
    lead: int = 0  # domain rows by which it runs ahead of its segment's blocks


@dataclass(frozen=True, slots=True)
class Segment:
    """Slots executed together: block after block, each block through all slots (section-major)."""

    slots: tuple[Slot, ...]
    block: int = 0  # domain rows of one block; 0: the whole domain, slot after slot (layer-major)


@dataclass(frozen=True, slots=True)
class Bridge:
    """How sections [first, first + count) of a buffer get from a use to a later one.

    Slots are numbered through all segments. For a tier, a section is offloaded as soon as its
    bytes are final, and leaves the device once the last launch of slot `after` that uses it has
    run. It is back before the first launch of a slot from `needed_by` on that uses it.

    In another form than raw, the code is left by slot `after`, or encoded behind its last launch
    that uses the section. From slot `needed_by` on uses that can take the code; before another use
    it is decoded. The raw section stays for as long as uses before that want it.

    A `zero_copy` code never lies on the device on its way out: a kernel reads the raw section,
    which leaves with slot `after`, and stores the code in host memory itself.
    """

    buffer: str
    first: int
    count: int
    after: int  # slot of the last use before
    needed_by: int  # slot of the first use behind
    earliest_prefetch: int  # slot before whose start no prefetch is issued
    form: Form = RAW
    tier: str | None = HOST  # None: the code rests on the device
    zero_copy: bool = False  # a kernel encodes straight to the host


@dataclass(frozen=True, slots=True)
class OptimalityReport:
    """The simulated step time of a plan beside the least optimum of linear programs, in seconds.

    The programs ask for no whole sections and no places. Those of tvdnn-ilp are lower bounds of the
    orders that they are of. Those of auto count time in steps of several launches, and may lie a
    little above.

    A sensitivity is the number of seconds by which 1% more of a resource ("memory", "link", "host"
    or "compute") lowers the bound. The largest comes first: its resource binds. `alternatives` say
    by buffer what is the next best to do with it, and the seconds that this adds to the bound.
    """

    step_s: float
    bound_s: float
    sensitivities: Mapping[str, float]
    alternatives: Mapping[str, tuple[str, float]] = field(default_factory=dict)

    @property
    def gap(self) -> float:
        """The share of the bound by which the step is longer."""
        return self.step_s / self.bound_s - 1.0

    def __str__(self) -> str:
        binds = ", ".join(
            f"{name} ({1e3 * seconds:.3f} ms for 1% more)"
            for name, seconds in self.sensitivities.items()
            if seconds > 0
        )
        return (
            f"{1e3 * self.step_s:.2f} ms, {self.gap:.1%} above the bound of "
            f"{1e3 * self.bound_s:.2f} ms; binding: {binds}"
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """A policy's decisions: the order of the passes, and the bridges of every buffer."""

    policy: str
    segments: tuple[Segment, ...]
    bridges: tuple[Bridge, ...] = ()
    sync: bool = False  # vDNN's synchronisation: a slot waits for the copies of the slot before it
    reasons: Mapping[str, str] = field(default_factory=dict)  # by buffer, why: for people
    outside: tuple[str, ...] = ()  # eager ops and computed parameters: outside the budget
    optimality: OptimalityReport | None = None

    @property
    def transfers(self) -> tuple[Bridge, ...]:
        """The bridges that leave the device."""
        return tuple(each for each in self.bridges if each.tier is not None)

    @property
    def rounded(self) -> frozenset[str]:
        """The buffers that rest in a lossy code. Gradients are exact where there are none."""
        return frozenset(self.rounding)

    @property
    def rounding(self) -> dict[str, Form]:
        """The lossy code of each buffer that rests in one."""
        return {each.buffer: each.form for each in self.bridges if is_lossy(each.form)}

    @property
    def slots(self) -> tuple[Slot, ...]:
        return tuple(slot for segment in self.segments for slot in segment.slots)

    def with_prefetch_distance(self, slots: int) -> "Plan":
        """The plan with each prefetch issued at most `slots` slots ahead of its use."""
        bridges = tuple(
            replace(each, earliest_prefetch=max(each.earliest_prefetch, each.needed_by - slots))
            for each in self.bridges
        )
        return replace(self, bridges=bridges, optimality=None)

    def _next_best(self, buffer: str) -> str:
        """What is the next best to do with a buffer, in words."""
        known = self.optimality.alternatives.get(buffer) if self.optimality else None
        return f"; next best: {known[0]}, +{1e3 * known[1]:.2f} ms" if known else ""

    def __str__(self) -> str:
        """The policy, and a line for every map that does not stay raw: its means, and why."""
        offloaded = {each.buffer for each in self.transfers}
        coded = {each.buffer for each in self.bridges if each.form != RAW}
        counts = f"{len(offloaded) or 'no'} maps leave the device"
        counts += f", {len(coded)} have a code" if coded else ""
        rounded = len(self.rounded)
        counts += f", {rounded} of them lossy: gradients are rounded" if rounded else ""
        fewer = sum(slot.sums > 0 for slot in self.slots)
        counts += f", {fewer} weight gradients have fewer sums" if fewer else ""
        lines = [f"{self.policy}: {counts}"]
        lines += [f"  {self.optimality}"] if self.optimality else []
        for each in self.bridges:
            last = each.first + each.count - 1
            form = "" if each.form == RAW else f" as {each.form}"
            form += ", encoded straight to the host" if each.zero_copy else ""
            why = self.reasons.get(each.buffer, "planned so")
            form += f" to the {each.tier}" if each.tier in (FILE, PEER) else ""
            where = f"({why}{self._next_best(each.buffer)})" if each.tier else "on the device"
            lines.append(f"  {each.buffer}: sections {each.first} to {last}{form} {where}")
        for name in (name for name in self.reasons if name not in offloaded | coded):
            lines.append(f"  {name}: recomputed ({self.reasons[name]}{self._next_best(name)})")
        lines += [f"  {name}: run by torch, outside the memory guarantee" for name in self.outside]
        return "\n".join(lines)


def prefetched_nbytes(graph: Graph, plan: Plan) -> int:
    """Bytes that are prefetched in a step. At most as many are offloaded."""
    return sum(transfer_nbytes(graph, transfer) for transfer in plan.transfers)


def transfer_nbytes(graph: Graph, transfer: Bridge) -> int:
    """Bytes of the sections of a bridge, in its form."""
    buffer = in_form(graph.buffers[transfer.buffer], transfer.form)
    start = buffer.bounds(transfer.first)[0]
    stop = buffer.bounds(transfer.first + transfer.count - 1)[1]
    return (stop - start) * buffer.row_nbytes
