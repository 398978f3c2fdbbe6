"""Scratch memory: device bytes on which passes are launched to be timed."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, product
from statistics import median

import torch

from ..graph import RAW, RUN_CHUNKS, Buffer, Form, Graph, Param, Pass, Use, in_form, section_rows
from ..kernels.language.overrides import Configurations
from ..ops.operator import TORCH_DTYPES, Control, FaultRecord
from ..placement import aligned
from ..planner.ir.costs import Forms
from ..planner.ir.schedule import Action, Lane, Operand, Space, Step
from ..planner.ir.settings import RULES, Table
from ..units import GIB
from .binding import Call, Tensors, bind_step
from .kernel_set import kernel_set
from .precompile import compiling
from .streams import capture
from .views import ByteViews

# Launches in one CUDA graph: the start of the graph is a small share of each.
REPEATS = 8
# Launches in turn touch this many times the bytes of the last-level cache. None hits it.
CACHES = 2
REPLAYS = 5
# Seconds between two launches of a step, beyond those between launches of one pass. Sums over the
# passes of a step were 0.47 us a launch too short for DenseNet-121 and ResNet-50, 0.67 us for
# GoogLeNet (H200, 2026-11-23).
APART_S = 0.5e-6
SCRATCH_NBYTES = 3 * GIB
# The value of each setting of the optimizer: updates change parameters and stay finite.
OPTIMIZER_SETTING = 0.5
# The random numbers of a pass are the same each time.
SEED = 0
Rows = tuple[str, int, int, Form]  # buffer, start, stop, form
UseInForm = tuple[Use, Form]
PassInForms = tuple[int, Forms]  # a pass by its index, and the forms besides raw


@dataclass(frozen=True, slots=True)
class _Bound:
    """A bound launch, the bytes that it writes, and the tensors outside these bytes."""

    call: Call
    written: tuple[torch.Tensor, ...]
    tensors: Tensors


class Scratch:
    """Device bytes, filled with random numbers, on which passes are launched to be timed.

    Kernels run with the `configurations` that hold at the launch.
    """

    def __init__(
        self,
        graph: Graph,
        device: torch.device,
        kernels: str,
        limit: int,
        configurations: Table = RULES,
    ) -> None:
        self._graph, self._device, self.limit = graph, device, limit
        self.configurations = Configurations(configurations)
        self.kernels = kernel_set(kernels, self.configurations)
        self._random = torch.Generator(device)
        self._bytes = torch.empty(0, dtype=torch.uint8, device=device)
        floats = torch.full((8,), OPTIMIZER_SETTING, device=device)
        floats[7] = 0.0  # the flag that stops updates is off
        seed = torch.zeros(1, dtype=torch.int64, device=device)
        one, words = torch.ones(6, device=device), torch.zeros(3, dtype=torch.int64, device=device)
        faults = FaultRecord(step=words[:1], record=words[1:])
        self._control = Control(floats, one[:1], seed, faults, own=one[:5], status=one)
        self.cold_nbytes = CACHES * cache_nbytes(device)
        self._latest: torch.cuda.CUDAGraph | None = None
        if device.type == "cuda":
            self._stream, self._pool = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()

    def row_counts(self, pass_: Pass, forms: Forms = ()) -> tuple[int, ...]:
        """Row counts to measure: a unit, a run and four runs, limited by domain and scratch."""
        uses = (use for use in (*pass_.reads, *pass_.writes) if not use.whole)
        row = max((self._graph.buffers[use.buffer].row_nbytes for use in uses), default=1)
        run = max(pass_.unit, section_rows(pass_.domain, row, RUN_CHUNKS * self._graph.chunk_size))
        wanted = {min(pass_.domain, rows) for rows in (pass_.unit, run, 4 * run)}
        room = self.limit - self._stand_ins_nbytes(pass_)
        fits = [rows for rows in sorted(wanted) if self._nbytes(pass_, forms, rows) <= room]
        return tuple(fits or [min(wanted)])

    def compile(
        self,
        launches: Iterable[PassInForms],
        progress: Callable[[str, float], None] | None = None,
    ) -> None:
        """Compile the kernels of passes in parallel, except for eager ops.

        Kernels of eager ops may tune themselves, and may depend on addresses.
        """
        with compiling(self._device, progress):
            for index, forms in launches:
                pass_ = self._graph.passes[index]
                if not self._graph.is_eager(pass_):
                    self.try_out(index, self.row_counts(pass_, forms), forms)

    def try_out(self, index: int, counts: Iterable[int], forms: Forms = ()) -> None:
        """Launch pass `index` over each of `counts` rows, each turn once, and ignore errors.

        The first launch over the samples of a map may run another kernel than later launches: it
        sets the gradients that they add to.
        """
        with suppress(Exception):
            for rows in counts:
                for call in self.turns(index, rows, forms):
                    call()

    def measure(self, index: int, rows: int, forms: Forms = ()) -> float:
        """Median seconds of one launch of pass `index` over `rows` rows, timed as in a step.

        In a step, launches go over a map one after the other. A second launch on the same rows
        would find them in the cache: a section of batch normalization of ResNet-50 took 8 us, and
        12 us in a step (H200, 2026-11-22).
        """
        return self.seconds(self.turns(index, rows, forms))

    def seconds(self, calls: Sequence[Call]) -> float:
        """Median seconds of one of the calls, which run one after the other."""
        for call in calls:
            call()
        launches = [*calls] * -(-REPEATS // len(calls))
        begin, end = (torch.cuda.Event(enable_timing=True, external=True) for _ in range(2))
        torch.cuda.synchronize(self._device)
        captured = self._captured((begin.record, *launches, end.record))

        def replayed_s() -> float:
            captured.replay()
            torch.cuda.synchronize(self._device)
            return float(begin.elapsed_time(end)) / 1e3

        replayed_s()
        return median(replayed_s() for _ in range(REPLAYS)) / len(launches) + APART_S

    def _captured(self, launches: Iterable[Call]) -> torch.cuda.CUDAGraph:
        """A CUDA graph of the launches, in one memory pool with the graph before it.

        The graph before is kept: torch refuses a graph in a pool that no other graph uses.
        """
        captured = torch.cuda.CUDAGraph()
        with capture(captured, self._stream, self._pool):
            for call in launches:
                call()
        self._latest = captured
        return captured

    def turns(self, index: int, rows: int, forms: Forms = ()) -> tuple[Call, ...]:
        """Launches of pass `index` over `rows` rows each, at successive places of its domain.

        They touch more bytes than the cache holds, as far as scratch has room.
        """
        pass_ = self._graph.passes[index]
        stride = -(-rows // pass_.unit) * pass_.unit
        starts = range(0, pass_.domain - rows + 1, stride)[:REPEATS]
        room = self.limit - self._stand_ins_nbytes(pass_)

        def nbytes(count: int) -> int:
            return self._nbytes(pass_, forms, rows, starts[:count])

        count, most = 1, len(starts)
        cold_nbytes = self.cold_nbytes + self._beside_gradients_nbytes(pass_)
        while count < most and nbytes(count) < cold_nbytes and nbytes(count + 1) <= room:
            count += 1
        return tuple(bound.call for bound in self._bound(index, forms, rows, starts[:count]))

    def _beside_gradients_nbytes(self, pass_: Pass) -> int:
        """Bytes of the buckets of which a pass uses ranges, without these."""
        buffers = self._graph.buffers
        used = {
            use.range: use.nbytes(buffers[use.buffer])
            for use in (*pass_.reads, *pass_.writes)
            if use.range in self._graph.param_of_grad
        }
        return sum(buffers[name].nbytes for name in {name for name, _ in used}) - sum(used.values())

    def results(self, index: int, rows: int) -> tuple[torch.Tensor, ...]:
        """The bytes that one launch of pass `index` over `rows` rows writes, with parameters."""
        (bound,) = self._bound(index, (), rows)
        bound.call()
        states = (each for state in bound.tensors.updates.values() for each in state)
        left = (*bound.written, *(each for each in states if each is not None))
        return tuple(each.contiguous().view(-1).view(torch.uint8).clone() for each in left)

    def _stand_ins_nbytes(self, pass_: Pass) -> int:
        """Bytes of dummy parameters, and of optimizer state of the updated ones."""
        names = [name for name in (*pass_.params, *pass_.updates, *pass_.updates) if name]
        return sum(self._graph.network.params[name].nbytes for name in names)

    def _nbytes(self, pass_: Pass, forms: Forms, rows: int, starts: Sequence[int] = (0,)) -> int:
        return _total_nbytes(self._operands(pass_, forms, rows, starts).values())

    def _operands(
        self, pass_: Pass, forms: Forms, rows: int, starts: Sequence[int] = (0,)
    ) -> dict[Rows, Operand]:
        """An operand for each range of rows that the pass uses. Operands lie end to end."""
        offset, found = 0, {}
        for start, used in product(starts, chain(*_uses_in(pass_, forms))):
            name, first, end, form = key = self._rows(used, start, rows)
            nbytes = (end - first) * in_form(self._graph.buffers[name], form).row_nbytes
            if key not in found:
                found[key] = Operand(name, first, end, Space.ARENA, offset, nbytes, form)
                offset += aligned(nbytes)
        return found

    def _rows(self, used: UseInForm, start: int, rows: int) -> Rows:
        use, form = used
        return use.buffer, *use.rows(start, start + rows, self._graph.buffers[use.buffer]), form

    def call(self, index: int, rows: int) -> Call:
        """The bound launch of pass `index` over its first `rows` rows."""
        (bound,) = self._bound(index, (), rows)
        return bound.call

    def _bound(
        self, index: int, forms: Forms, rows: int, starts: Sequence[int] = (0,)
    ) -> list[_Bound]:
        pass_ = self._graph.passes[index]
        operands = self._operands(pass_, forms, rows, starts)
        memory = self.filled(operands.values(), self._graph.buffers)
        tensors = self._tensors(pass_)

        def bound(start: int) -> _Bound:
            reads, writes = (
                tuple(operands[self._rows(used, start, rows)] for used in uses)
                for uses in _uses_in(pass_, forms)
            )
            span = (start, start + rows)
            step = Step(Lane.COMPUTE, Action.LAUNCH, 0, index, *span, reads, writes)
            call = bind_step(self._graph, step, memory, tensors, self.kernels, by_unit=False)
            return _Bound(call, tuple(memory.bytes_of(operand) for operand in writes), tensors)

        return [bound(start) for start in starts]

    def filled(self, operands: Collection[Operand], buffers: Mapping[str, Buffer]) -> ByteViews:
        """Scratch with random numbers in the operands, which lie end to end."""
        self._reserve(_total_nbytes(operands))
        memory = ByteViews(self._bytes, torch.empty(0, dtype=torch.uint8))
        self._random.manual_seed(SEED)
        self._fill(memory, operands, buffers)
        return memory

    def _reserve(self, nbytes: int) -> None:
        if nbytes > self._bytes.numel():
            self._bytes = torch.empty(0, dtype=torch.uint8, device=self._device)
            torch.cuda.empty_cache()  # does nothing without a GPU
            self._bytes = torch.empty(nbytes, dtype=torch.uint8, device=self._device)

    def _fill(
        self, memory: ByteViews, operands: Iterable[Operand], buffers: Mapping[str, Buffer]
    ) -> None:
        """Fill with random numbers, rounded to TF32 where products read TF32.

        Zeros toggle fewer bits and draw less power. The GPU lowers its clocks at its power limit:
        matrix products run faster on zeros than on real data. With full float32 maps a step of
        VGG-16 in tf32 was predicted 5% too long, with rounded maps 1% (H200, 2026-11-21).
        """
        for operand in operands:
            view = memory.view(operand, buffers[operand.buffer])
            if operand.form != RAW:
                view.random_(generator=self._random)
                continue
            if not view.is_floating_point():
                view.zero_()
                continue
            view.normal_(generator=self._random)
            if self._graph.dtype == "tf32" and view.dtype == torch.float32:
                self.kernels.cast(view, view, precision="tf32")

    def _tensors(self, pass_: Pass) -> Tensors:
        """Random dummy parameters and optimizer state for one measurement."""
        params = self._graph.network.params
        names = [name for name in (*pass_.params, *pass_.updates) if name]
        stand_ins = {name: self._stand_in(params[name]) for name in names}
        states: dict[str, tuple[torch.Tensor | None, ...]] = {}
        for name in pass_.updates:
            kept = (torch.zeros_like(stand_ins[name]) for _ in range(pass_.attrs.get("states", 0)))
            none = (None,) if pass_.attrs.get("states") == 0 else ()
            states[name] = (stand_ins[name], *kept, *none)
        return Tensors(stand_ins, states, self._control)

    def _stand_in(self, param: Param) -> torch.Tensor:
        values = torch.randn(param.shape, device=self._device, generator=self._random)
        return values.to(TORCH_DTYPES[param.dtype])


def _uses_in(pass_: Pass, forms: Forms) -> tuple[list[UseInForm], list[UseInForm]]:
    """The reads and the writes of a launch. Codes that it leaves come last."""
    chosen = frozenset(forms)

    def those(use: Use, able: Iterable[Form]) -> list[UseInForm]:
        return [(use, form) for form in able if (use.buffer, form) in chosen]

    reads = [(those(use, use.forms) or [(use, RAW)])[0] for use in pass_.reads]
    codes = chain.from_iterable(those(use, use.also) for use in pass_.writes)
    return reads, [*((use, RAW) for use in pass_.writes), *codes]


def _total_nbytes(operands: Iterable[Operand]) -> int:
    return sum(aligned(operand.nbytes) for operand in operands)


def cache_nbytes(device: torch.device) -> int:
    """Bytes of the GPU's last-level cache. 0 on the CPU, where nothing is timed."""
    if device.type != "cuda":
        return 0
    return torch.cuda.get_device_properties(device).L2_cache_size
