"""Plan: the decisions for every buffer and the order of the passes; no time, no addresses."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ...graph import Graph


@dataclass(frozen=True, slots=True)
class Slot:
    """One occurrence of a pass in the plan; what is recomputed occurs again, later.

    `run` is the most domain rows that one launch covers; 0 means the whole block.
    """

    pass_index: int
    run: int = 0
    recompute: bool = False


@dataclass(frozen=True, slots=True)
class Segment:
    """Slots executed together: block after block, each through all of the slots (section-major).

    `block` is the domain rows of one block; 0 means the whole domain, so that slots go one after
    the other (layer-major).
    """

    slots: tuple[Slot, ...]
    block: int = 0


@dataclass(frozen=True, slots=True)
class Transfer:
    """Sections [first, first + count) of a buffer that leave the device and return.

    Slots are numbered through all segments in order. A section leaves once the launch of slot
    `leave` that last touches it has run (its copy may start as soon as its bytes are final), and is
    back before the first launch of a slot at or after `back` touches it. Its prefetch is issued no
    earlier than the start of slot `opens`.
    """

    buffer: str
    first: int
    count: int
    leave: int
    back: int
    opens: int


@dataclass(frozen=True, slots=True)
class OptimalityReport:
    """How near the optimum a plan is."""

    step_s: float  # as simulated
    bound_s: float  # no plan takes fewer seconds
    # Seconds by which 1% more "memory", "link", "host" or "compute" lowers the bound, most first.
    sensitivities: Mapping[str, float]

    @property
    def gap(self) -> float:
        """By what share the step takes longer than the bound."""
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
    """What happens to every buffer, and in which order the passes run.

    `sync` keeps vDNN's end-of-layer synchronisation: the slot after one whose maps leave, or one
    during which maps return, waits for those copies. `outside` names the ops that run as they are
    and the parameters that are computed, whose bytes are counted but not held to the budget.
    """

    policy: str
    segments: tuple[Segment, ...]
    transfers: tuple[Transfer, ...] = ()
    sync: bool = False
    reasons: Mapping[str, str] = field(default_factory=dict)  # by buffer, for people
    outside: tuple[str, ...] = ()
    optimality: OptimalityReport | None = None  # where it is known

    @property
    def slots(self) -> tuple[Slot, ...]:
        return tuple(slot for segment in self.segments for slot in segment.slots)

    def with_prefetch_distance(self, most: int) -> "Plan":
        """The plan with each prefetch issued at most so many slots ahead of its use."""
        moves = (replace(each, opens=max(each.opens, each.back - most)) for each in self.transfers)
        return replace(self, transfers=tuple(moves), optimality=None)

    def __str__(self) -> str:
        """The policy, and a line for every map that moves or is made again: how much, and why."""
        away = dict.fromkeys(move.buffer for move in self.transfers)
        lines = [f"{self.policy}: {len(away) or 'no'} maps leave the device"]
        lines += [f"  {self.optimality}"] if self.optimality else []
        for move in self.transfers:
            reason = self.reasons.get(move.buffer, "planned so")
            last = move.first + move.count - 1
            lines.append(f"  {move.buffer}: sections {move.first} to {last} ({reason})")
        again = (name for name in self.reasons if name not in away)
        lines += [f"  {name}: made again ({self.reasons[name]})" for name in again]
        lines += [f"  {name}: run by torch, outside the memory guarantee" for name in self.outside]
        return "\n".join(lines)


def copied_nbytes(graph: Graph, plan: Plan) -> int:
    """Bytes that come back to the device in a step; no more leave."""
    return sum(moved_nbytes(graph, move) for move in plan.transfers)


def moved_nbytes(graph: Graph, move: Transfer) -> int:
    """Bytes of the sections of a transfer."""
    buffer = graph.buffers[move.buffer]
    start, stop = buffer.bounds(move.first)[0], buffer.bounds(move.first + move.count - 1)[1]
    return (stop - start) * buffer.row_nbytes
