"""Builder: collects the buffers and passes of a step while operators declare them."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Final

from ..graph import Collective, Direction, Form, Kind, Op, Pass, Use, in_form
from ..kernels.conv.batch_stats import MomentCells
from ..optim import Optimizer
from ..units import MIB
from .concat_views import Channels
from .masks import Masks

BUCKET_NBYTES: Final = 25 * MIB  # as DistributedDataParallel's


@dataclass(frozen=True, slots=True)
class Ranks:
    """The processes that train together, and the bytes of gradients that they sum at once."""

    size: int
    bucket_nbytes: int = BUCKET_NBYTES
    dtype: str = "float32"  # of the sums
    early: bool = False  # whether a bucket's parameters are updated before the last sum has arrived
    sharded: bool = False  # whether each process has a piece of the optimizer's state


@dataclass(slots=True, kw_only=True)
class Builder(Masks):
    """State of the expansion of a network into passes."""

    # The precision of products.
    precision: str
    optimizer: Optimizer
    # The role of the passes that take whole gradients of parameters; "" where they are handed out.
    gradient_sink: str
    passes: list[Pass] = field(default_factory=list)
    written: set[str] = field(default_factory=set)  # buffers that a pass so far writes
    direction: Direction = Direction.FORWARD
    # The ops beside the network's, by name, and the names that these cannot have.
    added: dict[str, Op] = field(default_factory=dict)
    taken: set[str] | None = None
    # By parameter, the gradients of its uses and the places of these in the traced network.
    param_grads: dict[str, list[str]] = field(default_factory=dict)
    param_places: dict[str, list[int]] = field(default_factory=dict)
    # By parameter, the sums that ops have left of its gradient.
    partials: dict[str, list[str]] = field(default_factory=dict)
    # Whether pointwise convolutions and the gradients of their weights make maps as they load them.
    remakes_maps: bool = False
    # The values that only their readers make. They lie where what they are made of does.
    made_by_readers: set[str] = field(default_factory=set)
    # The values that all of their readers normalize. They lie where their sources do.
    normalized_by_readers: set[str] = field(default_factory=set)
    # Whether parameters are updated behind all other passes.
    updates_last: bool = False
    # The parameters whose gradients are whole, and whose updates come last.
    deferred_updates: list[str] = field(default_factory=list)
    # The parameters whose update waits for others to share a launch.
    batched_updates: list[str] = field(default_factory=list)
    # Of processes that train together: the parameters of each bucket of gradients, those whose
    # gradients are whole, how many buckets are summed, and by the op of each its buffer.
    ranks: Ranks | None = None
    world: int = 1  # processes, which may share the statistics of a normalization
    buckets: list[tuple[str, ...]] = field(default_factory=list)
    whole_grads: set[str] = field(default_factory=set)
    summed: int = 0
    bucket_buffers: dict[str, str] = field(default_factory=dict)
    # By parameter, the bucket in which its gradient is made, and the range there.
    bucket_places: dict[str, tuple[str, Channels]] = field(default_factory=dict)
    # By parameter, how many ops use it.
    uses: Counter[str] = field(init=False)
    # The parameters that are updated by what makes their gradient.
    fused_update: frozenset[str] = field(init=False)
    # The parameters whose gradient is summed for an update behind all passes.
    completed_last: frozenset[str] = field(init=False)
    # The values that ops normalize by their own moments, and the residuals that they add then.
    normalized: frozenset[str] = field(init=False)
    residuals: frozenset[str] = field(init=False)
    # By value, the normalization of a residual that is made only where the residual is added. The
    # value then lies where its input does.
    added_normalized: dict[str, Op] = field(default_factory=dict)
    # By such value, the gradients of weight and bias that were found before its turn.
    sums: dict[str, tuple[Use, Use]] = field(default_factory=dict)
    # By buffer of moments, the channels that it has them of.
    moments: dict[str, list[Channels]] = field(default_factory=dict)
    # By map, the cells whose moments its maker leaves.
    moment_cells: dict[str, MomentCells] = field(default_factory=dict)

    def __post_init__(self) -> None:
        Masks.__post_init__(self)
        ops = self.network.ops
        self.normalized = frozenset(op.inputs[0] for op in ops if op.attrs.get("training"))
        self.residuals = frozenset(n for op in ops if "momentum" in op.attrs for n in op.inputs[1:])
        self.uses = Counter(name for op in ops for name in op.params)
        once = {name for name, count in self.uses.items() if count == 1}
        self.completed_last = self.network.completed_last
        fuses = self.gradient_sink == "update" and not self.updates_last and self.ranks is None
        self.fused_update = frozenset(once - self.completed_last if fuses else ())

    def add_partials(self, op: Op, param: str, shape: tuple[int, ...]) -> str:
        """A float32 buffer for the splits of an op's contribution to a parameter's gradient."""
        name = self.add_whole(f"partial {param} {op.name}", Kind.PARTIAL, shape)
        self.partials.setdefault(param, []).append(name)
        return name

    def add_pass(
        self,
        op: Op,
        role: str,
        reads: Sequence[Use],
        writes: Sequence[Use],
        *,
        params: tuple[str, ...] = (),
        updates: tuple[str, ...] = (),
        reduction: bool = False,
        least_sums: int = 0,
        flops: float = 0.0,
        unit: int = 0,
        extra_nbytes: int = 0,
        attrs: Mapping[str, Any] | None = None,
        effects: bool = False,
        ranks: int = 0,
        collective: Collective = Collective.ALL_REDUCE,
    ) -> None:
        """Append a pass over the batch.

        The pass's unit is the largest section that it touches by sample, but at least `unit`. A
        pass that touches none takes the whole batch. Its bytes are those of its buffers and
        `extra_nbytes`. A read with a halo also reads the neighbour sections, and the pass gets
        scratch to join their rows.
        """
        reads, writes = ([self.resolved(use) for use in uses] for uses in (reads, writes))
        uses = (*reads, *writes)
        rows = [self.buffers[use.buffer].section * use.per for use in uses if not use.whole]
        unit = min(self.batch, max([unit, *rows])) if unit or rows else self.batch
        nbytes = extra_nbytes + sum(use.nbytes(self.buffers[use.buffer]) for use in uses)
        for use in [use for use in reads if any(use.halo)]:
            reads += [replace(use, halo=(0, 0), neighbour=side) for side in sides_of(use)]
            writes.append(whole(self._add_image(self.unique(f"image {op.name} {role}"), use, unit)))
        self.written.update(use.buffer for use in writes)
        self.passes.append(
            Pass(
                name=f"{op.name} {role}",
                op=op.name,
                role=role,
                direction=self.direction,
                domain=self.batch,
                unit=unit,
                reads=tuple(reads),
                writes=tuple(writes),
                params=params,
                updates=updates,
                reduction=reduction,
                least_sums=least_sums,
                flops=flops,
                nbytes=nbytes,
                attrs=attrs or {},
                effects=effects,
                ranks=ranks,
                collective=collective,
                form_nbytes=self._form_nbytes(uses),
            )
        )

    def _form_nbytes(self, uses: Iterable[Use]) -> dict[tuple[str, Form], float]:
        """By buffer and form, the bytes of a code that is left, or read in the place of the map."""
        found: dict[tuple[str, Form], float] = {}
        for use in uses:
            buffer = self.buffers[use.buffer]
            for form in use.forms:
                code = in_form(buffer, form).nbytes * use.width(buffer) / buffer.shape[-1]
                found[buffer.name, form] = code - use.nbytes(buffer)
            for form in use.also:
                found[buffer.name, form] = in_form(buffer, form).nbytes
        return found

    def _add_image(self, name: str, use: Use, unit: int) -> str:
        """A buffer for a unit of a map's row tiles with the rows beside them."""
        buffer = self.buffers[use.buffer]
        _, height, width, _ = buffer.shape
        shape = (unit * height + sum(use.halo), width, use.width(buffer))
        return self.add_whole(name, Kind.PARTIAL, shape, buffer.dtype)

    def product_flops(self, op: Op, *places: int) -> float:
        """Operations of a product with the op's weight at each of so many places of maps."""
        return 2.0 * prod(places) * prod(self.param_shape(op.params[0]))

    def add_weight_copy(self, op: Op, role: str, name: str, shape: tuple[int, ...]) -> Use:
        """A copy of the op's weight in the compute type, as a product wants it, and its pass."""
        copy = whole(self.add_whole(name, Kind.WEIGHT, shape, self.dtype))
        weight = op.params[0]
        nbytes = self.param_nbytes(weight)
        self.add_pass(op, role, (), (copy,), params=(weight,), extra_nbytes=nbytes)
        return copy

    def param_shape(self, name: str) -> tuple[int, ...]:
        return self.network.params[name].shape

    def param_nbytes(self, name: str) -> int:
        return self.network.params[name].nbytes if name else 0

    def sink_of(self, param: str) -> str:
        """The role of the pass that takes the whole gradient of a parameter; "" for none."""
        last = param in self.completed_last
        return "accumulate" if last and self.gradient_sink == "update" else self.gradient_sink

    def update_nbytes(self, param: str) -> int:
        """Bytes that an update moves: parameter and state, read and written."""
        return 2 * (1 + len(self.optimizer.states)) * self.param_nbytes(param)

    def add_update(self, op: Op, role: str, reads: Sequence[Use], params: tuple[str, ...]) -> None:
        """Append a pass that changes parameters, or the kept sums of their gradients."""
        nbytes = sum(map(self.update_nbytes, params))
        attrs = self.update_attrs if role == "update" else {}  # a kept sum has no state beside it
        with self.updating():
            self.add_pass(op, role, reads, (), updates=params, extra_nbytes=nbytes, attrs=attrs)

    @contextmanager
    def updating(self) -> Iterator[None]:
        """A context in which passes are of the update."""
        direction, self.direction = self.direction, Direction.UPDATE
        try:
            yield
        finally:
            self.direction = direction

    def needs_param_grad(self, name: str) -> bool:
        return bool(name) and self.network.params[name].requires_grad

    @property
    def update_attrs(self) -> Mapping[str, Any]:
        """The optimizer's settings of an update: kernels, number of states, switches."""
        optimizer = self.optimizer
        states = len(optimizer.states)
        return {"optimizer": optimizer.kind, "states": states, "switches": optimizer.switches}

    def add_op(self, op: Op) -> Op:
        """Note an op that is none of the network's, with a name that none of these has."""
        taken = {each.name for each in self.network.ops} if self.taken is None else self.taken
        self.taken = taken
        if op.name in taken:
            op = replace(op, name=f"{op.kind} {op.name}")
        self.added[op.name] = op
        return op

    @property
    def own_param_grads(self) -> dict[str, tuple[str, ...]]:
        """By parameter, the buffers of its gradient that lie in no bucket."""
        found = ((name, tuple(grads)) for name, grads in self.param_grads.items())
        return {name: grads for name, grads in found if name not in self.bucket_places}

    def new_param_grad(self, param: str) -> str:
        """A float32 buffer in the parameter's shape for one op's contribution to its gradient.

        Or the parameter's range of a bucket.
        """
        earlier = self.param_grads.setdefault(param, [])
        place = -1 if self.turn is None else self.order.of_op(self.turn)
        self.param_places.setdefault(param, []).append(place)
        if param in self.bucket_places:
            name = self.add_range(*self.bucket_places[param])
        else:
            suffix = f"#{len(earlier) + 1}" if earlier else ""
            shape = self.param_shape(param) or (1,)
            name = self.add_whole(self.unique(f"grad {param}{suffix}"), Kind.PARAM_GRAD, shape)
        earlier.append(name)
        return name


def sides_of(use: Use) -> list[int]:
    """On which sides of its own a use reads rows of pixels."""
    return [side for side, rows in zip((-1, 1), use.halo, strict=True) if rows]


def whole(buffer: str) -> Use:
    """The use of every row of a buffer."""
    return Use(buffer, whole=True)
