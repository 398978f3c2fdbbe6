"""Rows: one line of a benchmark, simulated or measured, the same in tables and in JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from struct import pack
from typing import Any

from ..planner.ir.schedule import Schedule
from ..planner.ir.timeline import Timeline, recode_s
from ..planner.timing.memory_profile import average_nbytes
from .maps import coded_nbytes


@dataclass(frozen=True, slots=True)
class _Subject:
    """A network with its batch, how its step is planned, and the machine of the step.

    `hardware` is the machine that runs the step, or the profile that it is simulated on.
    `chunk_size` is the default size in bytes.
    """

    net: str
    batch: int
    image_size: int
    dtype: str
    policy: str
    budget_bytes: int | None
    chunk_size: int
    hardware: str


@dataclass(frozen=True, slots=True)
class Case(_Subject):
    """The subject of a row.

    `versions` holds the versions of software, and the commit where it is known. Where sizes are
    `tuned`, some classes of maps have others than `chunk_size`.
    """

    versions: Mapping[str, str | None]
    tuned: bool = False


@dataclass(frozen=True, slots=True)
class Floor:
    """The least device bytes at which a policy has a schedule, and the step that sets them."""

    nbytes: int
    step: str


@dataclass(frozen=True, slots=True)
class Measurement:
    """Results of running a schedule: seconds of the median step, peak bytes and the last loss.

    `losses` are those of all timed steps, where kept. `peak_nbytes` and `timeline` are None on a
    CPU, which measures neither. `first_step_s` are the seconds from the making of the engine to the
    end of its first step, by part. Of `world` processes the step is the slowest's and the peak the
    largest of `peaks`.
    """

    step_s: float
    peak_nbytes: int | None
    loss: float
    timeline: Timeline | None = None
    losses: tuple[float, ...] | None = None
    first_step_s: Mapping[str, float] | None = None
    world: int = 1
    peaks: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(_Subject):
    """One line of a benchmark. Its fields are the keys of its JSON; None where one does not apply.

    `bound_s` is the lower bound of the step time inside the budgets (`planner.timing.bound`).
    `equal` says whether the losses have the bits of `keep`. `lossy` says that maps rest in codes
    that round them: losses then differ from the second step on. `feedback` says whether the plan
    was made again from measured times; None where nothing ran. `reason` says why it is infeasible.
    `fragmentation` is the idle share of the arena at its fullest step. `coded_bytes` are those of
    the sections that rest in a code, as they are raw. `first_step_s` are the seconds that one waits
    for the first step, by part. `world` processes train together, each on `batch` images; images
    and seconds are of all, and `peaks_bytes` are the peaks of each.
    """

    simulated: bool
    infeasible: bool
    floor_bytes: int | None
    floor_step: str | None
    step_s: float | None = None
    predicted_s: float | None = None
    bound_s: float | None = None
    images_per_s: float | None = None
    world: int = 1
    peak_bytes: int | None = None
    peaks_bytes: tuple[int, ...] | None = None
    planned_peak_bytes: int | None = None
    avg_bytes: float | None = None
    baseline_bytes: int
    offloaded_bytes: int | None = None
    coded_bytes: int | None = None
    host_bytes: int | None = None
    file_bytes: int | None = None
    fragmentation: float | None = None
    recode_s: float | None = None
    stall_s: float | None = None
    overlap: float | None = None
    slowdown: float | None = None
    loss: float | None = None
    losses: tuple[float, ...] | None = None
    first_step_s: Mapping[str, float] | None = None
    equal: bool | None = None
    lossy: bool = False
    feedback: bool | None = None
    reason: str | None = None
    versions: Mapping[str, str | None]
    tuned: bool

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def infeasible_row(
    case: Case,
    floor: Floor,
    *,
    baseline_nbytes: int,
    simulated: bool,
    reason: str | None = None,
) -> Row:
    """The row of a policy that has no schedule inside the budgets or on this machine.

    `reason` is None where the floor says everything.
    """
    return Row(
        **asdict(case),
        simulated=simulated,
        infeasible=True,
        floor_bytes=floor.nbytes,
        floor_step=floor.step,
        baseline_bytes=baseline_nbytes,
        reason=reason,
    )


def simulated_row(
    case: Case, schedule: Schedule, timeline: Timeline, floor: Floor, *, bound_s: float | None
) -> Row:
    """The row of a schedule that was simulated and not run."""
    return replace(
        _planned_row(case, schedule, floor, timeline),
        simulated=True,
        predicted_s=timeline.step_s,
        bound_s=bound_s,
        images_per_s=case.batch / timeline.step_s,
    )


def measured_row(
    case: Case,
    schedule: Schedule,
    measurement: Measurement,
    floor: Floor,
    *,
    predicted_s: float | None,
    bound_s: float | None,
    feedback: bool = False,
) -> Row:
    """The row of a schedule that was run. Predictions are None where no costs are known."""
    return replace(
        _planned_row(case, schedule, floor, measurement.timeline),
        step_s=measurement.step_s,
        predicted_s=predicted_s,
        bound_s=bound_s,
        images_per_s=measurement.world * case.batch / measurement.step_s,
        world=measurement.world,
        peak_bytes=measurement.peak_nbytes,
        peaks_bytes=measurement.peaks,
        loss=measurement.loss,
        losses=measurement.losses,
        first_step_s=measurement.first_step_s,
        feedback=feedback,
    )


def against_keep(rows: Sequence[Row]) -> tuple[Row, ...]:
    """The rows with their slowdown beside `keep` and whether their losses have its bits.

    Rows are compared with `keep` on the same subject and machine. The first row of `keep` counts:
    its step is the same in every budget.
    """
    oracles: dict[tuple[object, ...], Row] = {}
    for row in rows:
        if row.policy == "keep" and not row.infeasible:
            oracles.setdefault(_peers(row), row)
    return tuple(_beside(row, oracles.get(_peers(row))) for row in rows)


def _beside(row: Row, oracle: Row | None) -> Row:
    seconds, oracle_s = _seconds(row), None if oracle is None else _seconds(oracle)
    if oracle is None or seconds is None or not oracle_s:
        return row
    return replace(row, slowdown=seconds / oracle_s, equal=_same(row.losses, oracle.losses))


def _same(losses: Sequence[float] | None, others: Sequence[float] | None) -> bool | None:
    """Whether two runs had the same losses bit for bit. NaN equals NaN."""
    if losses is None or others is None:
        return None
    return pack(f"{len(losses)}d", *losses) == pack(f"{len(others)}d", *others)


def _planned_row(case: Case, schedule: Schedule, floor: Floor, timeline: Timeline | None) -> Row:
    """The fields that follow from the schedule and its timeline."""
    return replace(
        infeasible_row(
            case, floor, baseline_nbytes=schedule.graph.baseline_nbytes, simulated=False
        ),
        infeasible=False,
        planned_peak_bytes=schedule.peak_nbytes,
        avg_bytes=None if timeline is None else average_nbytes(schedule, timeline),
        offloaded_bytes=schedule.offloaded_nbytes,
        coded_bytes=coded_nbytes(schedule),
        lossy=bool(schedule.plan.rounded),
        host_bytes=schedule.slab_nbytes,
        file_bytes=schedule.file_nbytes,
        fragmentation=schedule.fragmentation,
        recode_s=None if timeline is None else recode_s(schedule, timeline),
        stall_s=None if timeline is None else timeline.stall_s,
        overlap=None if timeline is None else timeline.overlap,
    )


def _peers(row: Row) -> tuple[object, ...]:
    subject = row.net, row.batch, row.image_size, row.dtype
    return *subject, row.hardware, row.simulated, row.world


def _seconds(row: Row) -> float | None:
    return row.predicted_s if row.simulated else row.step_s
