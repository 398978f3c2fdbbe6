"""Maps: the decision of a plan for every feature map, and its reason, for tables and JSON."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..graph import RAW, Buffer, Form, Kind, is_lossy
from ..planner.ir.plan import FILE, PEER, Bridge
from ..planner.ir.schedule import Residency, Schedule

MAP_KINDS = frozenset({Kind.INPUT, Kind.MAP, Kind.AUX})
OFFLOAD = "offload"
ZERO_COPY = "zero-copy"
BOTH = " + "  # between the means of a map whose sections have several


@dataclass(frozen=True, slots=True)
class MapRow:
    """The decision for one feature map.

    `decision` is "keep", "offload", "recompute" or "free" (no pass of the backward reads it), or a
    form in which sections rest, also with "offload" or "recompute". A form that rounds values is
    called lossy. An offload names the tiers beside the host, as "offload to file", and is a
    "zero-copy offload" where a kernel encodes straight to the host. `sections_away` counts the
    sections that leave the device, `sections_coded` those that rest in a code and not raw.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    sections: int
    sections_away: int
    sections_coded: int
    decision: str
    why: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def map_rows(schedule: Schedule) -> tuple[MapRow, ...]:
    """The decision for every feature map, input and auxiliary buffer, in program order."""
    plan = schedule.plan
    away = _sections(plan.transfers)
    coded = coded_sections(schedule)
    recomputed = _recomputed(schedule)
    last_reads = _last_reads(schedule)
    rows = []
    for name, buffer in schedule.graph.buffers.items():
        if buffer.kind not in MAP_KINDS:
            continue
        last = last_reads.get(name)
        forms = coded.get(name, {})
        means = sorted({_named(form) for each in forms.values() for form in each})
        raw = _decision(schedule, name, last, away, recomputed)
        if not means or raw == "recompute" or OFFLOAD in raw:
            means.append(raw)
        why = plan.reasons.get(name) or _why(schedule, raw, last)
        decision = BOTH.join(means)
        rows.append(_row(buffer, decision, why, away.get(name, 0), len(forms)))
    return tuple(rows)


def coded_sections(schedule: Schedule) -> Mapping[str, Mapping[int, frozenset[Form]]]:
    """By buffer, the forms of the sections that rest in a code while they are not there raw."""
    codes = [each for each in schedule.residencies if each.form != RAW]
    sections = {(each.buffer, each.section) for each in codes}
    raw = defaultdict[tuple[str, int], list[Residency]](list)
    for each in schedule.residencies:
        if each.form == RAW and (each.buffer, each.section) in sections:
            raw[each.buffer, each.section].append(each)
    found = defaultdict[str, dict[int, frozenset[Form]]](dict)
    for code in codes:
        if not any(_covers(each, code) for each in raw[code.buffer, code.section]):
            others = found[code.buffer].get(code.section, frozenset())
            found[code.buffer][code.section] = others | {code.form}
    return found


def _named(form: Form) -> str:
    return f"{form} (lossy)" if is_lossy(form) else str(form)


def _covers(raw: Residency, code: Residency) -> bool:
    return raw.steps[0] <= code.steps[0] and code.steps[-1] <= raw.steps[-1]


def coded_nbytes(schedule: Schedule) -> int:
    """Bytes of the sections that rest in a code, as they are raw."""
    buffers = schedule.graph.buffers
    return sum(
        buffers[name].section_nbytes(section)
        for name, sections in coded_sections(schedule).items()
        for section in sections
    )


def _sections(bridges: Iterable[Bridge]) -> dict[str, int]:
    """By buffer, the number of its sections that take one of the bridges."""
    found: dict[str, set[int]] = {}
    for each in bridges:
        found.setdefault(each.buffer, set()).update(range(each.first, each.first + each.count))
    return {name: len(sections) for name, sections in found.items()}


def _row(buffer: Buffer, decision: str, why: str, away: int, coded: int) -> MapRow:
    return MapRow(
        name=buffer.name,
        kind=buffer.kind.value,
        shape=buffer.shape,
        dtype=buffer.dtype,
        nbytes=buffer.nbytes,
        sections=buffer.num_sections,
        sections_away=away,
        sections_coded=coded,
        decision=decision,
        why=why,
    )


def _recomputed(schedule: Schedule) -> frozenset[str]:
    passes = schedule.graph.passes
    slots = (slot for slot in schedule.plan.slots if slot.recompute)
    return frozenset(use.buffer for slot in slots for use in passes[slot.pass_index].writes)


def _last_reads(schedule: Schedule) -> dict[str, int]:
    """The index of the last pass that reads each buffer."""
    passes = enumerate(schedule.graph.passes)
    return {use.buffer: index for index, pass_ in passes for use in pass_.reads}


def _decision(
    schedule: Schedule,
    name: str,
    last: int | None,
    away: Mapping[str, int],
    recomputed: frozenset[str],
) -> str:
    if name in away:
        own = [each for each in schedule.plan.transfers if each.buffer == name]
        tiers, straight = {each.tier for each in own}, any(each.zero_copy for each in own)
        what = f"{ZERO_COPY} {OFFLOAD}" if straight else OFFLOAD
        return " to ".join((what, *(tier for tier in (PEER, FILE) if tier in tiers)))
    if name in recomputed:
        return "recompute"
    return "free" if last is None or _is_forward(schedule, last) else "keep"


def _is_forward(schedule: Schedule, index: int) -> bool:
    return schedule.graph.passes[index].direction.value == "forward"


def _why(schedule: Schedule, decision: str, last: int | None) -> str:
    if last is None:
        return "nothing reads it"
    reader = schedule.graph.passes[last].name
    if decision == "free":
        return f"last read by {reader}"
    return f"stays until {reader} has read it" if decision == "keep" else f"for {reader}"
