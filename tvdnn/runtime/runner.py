"""The runner: a schedule with its memory, calls and executor on one device."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import pairwise

import torch

from ..errors import DeviceError, EngineError, FileError
from ..graph import Value
from ..kernels.language.overrides import Configurations
from ..ops.operator import without_group
from ..planner.ir.costs import Costs
from ..planner.ir.schedule import Schedule
from ..planner.ir.settings import ENGINE, RULES, Table
from ..planner.ir.timeline import Timeline
from .arena import Arena
from .binding import Call, Lap, Place, Tensors, bind, output_places, place_view
from .caller_rows import by_sample, channels_first
from .check_encoders import check_encoders
from .cpu_executor import CpuExecutor
from .cuda_executor import CudaExecutor
from .file_calls import without_file
from .host_slab import Slab
from .input_rows import InputRows
from .kernel_set import kernel_set
from .lane_sync import first_meeting
from .pages import Mapping
from .precompile import compile_launches
from .probe_calls import CallChange
from .section_file import SectionFile
from .views import NO_BYTES, ByteViews, stand_ins

Progress = Callable[[str, float], None]


class Runner:
    """Runs the phases of a schedule: fill inputs, run, read outputs.

    On a GPU every kernel first runs once on scratch bytes. The phases are then captured as CUDA
    graphs, again after the arena or the slab has grown. `order_seed` randomizes the order of steps
    on the CPU, `delay_seed` delays steps on a GPU. On the CPU, `clock` holds the costs of the
    machine whose times are reported. `copies` is "engine" or "kernel". `configurations` are those
    of tuned kernels. After an exception in a step the runner is dead, and later calls raise an
    error. Raises InputError for packed codes by the references on a GPU.
    """

    def __init__(
        self,
        schedule: Schedule,
        tensors: Tensors,
        *,
        kernels: str,
        arena: Arena,
        slab: Slab,
        file: SectionFile | None = None,
        peer: Arena | None = None,
        order_seed: int | None = None,
        delay_seed: int | None = None,
        clock: Costs | None = None,
        copies: str = ENGINE,
        configurations: Table = RULES,
        progress: Progress | None = None,
    ) -> None:
        check_encoders(schedule, kernels, arena.device)
        self.schedule = schedule
        self._tensors = tensors
        self._by_unit = kernels == "torch" and arena.device.type == "cpu"
        self._kernels_name = kernels
        own = Configurations(configurations) if configurations else None
        self._kernels = kernel_set(kernels, own)
        self._arena, self._slab, self._file, self._peer = arena, slab, file, peer
        self._order_seed, self._delay_seed = order_seed, delay_seed
        self._clock, self._copies = clock, copies
        self._progress = progress
        group = tensors.control.group
        self._captures = group is None or group.sums_in_graphs
        self._dead: str | None = None
        self._executor: CpuExecutor | CudaExecutor | None = None
        self._mapping: Mapping | None = None  # of a paged arena
        self._inputs = InputRows(schedule, self._kernels, tensors.control)
        self._outputs = output_places(schedule)
        # The numbers of values of the last step's packed codes, on the device.
        self.counts = torch.zeros(schedule.num_counts, dtype=torch.int32, device=arena.device)
        self._cuts: tuple[int, ...] = ()  # of the second phase, before these steps
        self.suspend()

    @property
    def phases(self) -> tuple[tuple[int, int], ...]:
        """The step range of each phase. One range where the step is not split."""
        split, end = self.schedule.phase_split, len(self.schedule.steps)
        return tuple(pairwise((0, *((split,) if split < end else ()), *self._cuts, end)))

    def cut(self, before: Sequence[int]) -> None:
        """Cut the second phase before these steps. Its parts are then the phases from 1 on."""
        if tuple(before) == self._cuts:
            return
        self._cuts = tuple(before)
        if isinstance(self._executor, CudaExecutor):
            self._executor.keep(self.phases)
            self._capture_phases(self._executor)

    def suspend(self) -> None:
        """Drop all views of arena and slab. They can move then; `refresh` takes new views."""
        self._executor = None
        self._grad_views: dict[str, torch.Tensor] = {}
        self._memory = ByteViews(
            torch.empty(0, dtype=torch.uint8), torch.empty(0, dtype=torch.uint8)
        )
        if self._mapping is not None:
            self._mapping.close()
            self._mapping = None
        self._generations = (-1, -1, -1)

    def refresh(self) -> bool:
        """Bind and capture where arena or slab have moved. Returns whether that was done.

        Call it before inputs are filled: capture overwrites the arena. Arena and slab must be as
        large as the schedule needs.
        """
        due = self._generations != self._present_generations()
        if due:
            self._prepare()
        return due

    def fill(self, name: str, value: torch.Tensor, *, first: int = 0) -> None:
        """Write the caller's rows of an input, as `InputRows.fill` says."""
        self._inputs.fill(self._memory, name, value, first=first)

    def inputs(self, name: str) -> list[torch.Tensor]:
        """The rows of an input in the arena, as `fill` writes them ahead of its phase."""
        return self._inputs.views(self._memory, name)

    def check_labels(self, labels: torch.Tensor, *, first: int = 0) -> None:
        """Check labels on the device, as `fill` does, before other steps."""
        self._inputs.check_labels(labels, first=first)

    def run(self, phase: int = 0) -> None:
        """Run one phase of the step on the current stream."""
        with self._running() as executor:
            executor.run(*self.phases[phase])

    def probe(self, change: CallChange, phase: int | None = None) -> None:
        """Run one phase or the whole step by what `change` makes of the calls, one by one."""
        with self._running() as executor:
            calls = change(self.schedule, self._memory, executor.calls)
            executor.run_eagerly(*self._steps_of(phase), calls)

    def timed(self, phase: int = 0) -> Lap:
        """Run one phase of the step. The lap returns its seconds.

        Raises DeviceError on a CPU without a clock.
        """
        with self._running(measured=True) as executor:
            return executor.timed(*self.phases[phase])

    def timeline(self, phase: int | None = None) -> Timeline:
        """Run one phase or the whole step, updates included, and measure each of its steps.

        Raises DeviceError on a CPU without a clock.
        """
        with self._running(measured=True) as executor:
            return executor.timeline(*self._steps_of(phase))

    def _steps_of(self, phase: int | None) -> tuple[int, int]:
        return (0, len(self.schedule.steps)) if phase is None else self.phases[phase]

    @property
    def measures(self) -> bool:
        """Whether steps can be timed."""
        return self._arena.device.type == "cuda" or self._clock is not None

    @contextmanager
    def _running(self, *, measured: bool = False) -> Iterator[CpuExecutor | CudaExecutor]:
        """The executor for a step. If the step fails, the runner is dead afterwards.

        Raises FileError where a copy of the file failed, which leaves the runner as it was.
        """
        if self._dead is not None:
            raise EngineError(
                f"this engine stopped after a failed step ({self._dead}); make a new one"
            )
        if measured and not self.measures:
            raise DeviceError("a measured timeline needs a GPU; use the simulated one")
        assert self._executor is not None
        try:
            yield self._executor
        except BaseException as error:
            self._dead = f"{type(error).__name__}: {error}"
            self._forget_file_fault()
            raise
        fault = self._forget_file_fault()
        if fault is not None:
            raise FileError(fault)

    def _forget_file_fault(self) -> str | None:
        """The first copy of the file that failed, in words. Later steps train again."""
        file = self._file
        if file is None or file.fault is None or not self.schedule.file_nbytes:
            return None
        if self._arena.device.type == "cuda":
            torch.cuda.synchronize(self._arena.device)  # the updates read the error word before
        self._tensors.control.flag.zero_()
        return file.take_fault()

    def read(
        self,
        name: str,
        dtype: torch.dtype,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> torch.Tensor:
        """A fresh copy of a network output in torch's layout. Maps are in `memory_format`."""
        graph = self.schedule.graph
        buffer = graph.output_maps[graph.network.outputs.index(name)]
        return self._copy_out(buffer, graph.network.values[name], dtype, memory_format)

    def read_grad(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """A fresh copy of the gradient of a network input in torch's layout [N, C, H, W]."""
        graph = self.schedule.graph
        return self._copy_out(graph.input_grads[name], graph.network.values[name], dtype)

    def read_param_grads(self, params: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Fresh copies of gradients by name, each in its parameter's layout and type.

        Parameters on which no output depends have none. All are copied at once: calls for each of
        hundreds of parameters keep the host busy for milliseconds.
        """
        known = self.schedule.graph.param_grads
        held = {name: self.param_grad(name, each) for name, each in params.items() if name in known}
        copies = {
            name: torch.empty_like(each, dtype=params[name].dtype) for name, each in held.items()
        }
        if held:
            torch._foreach_copy_([*copies.values()], [*held.values()])
        return copies

    @cached_property
    def read_backward(self) -> frozenset[str]:
        """The parameters that the second phase reads, also to make maps again."""
        steps = self.schedule.steps[self.schedule.phase_split :]
        passes = {step.pass_index for step in steps if step.pass_index >= 0}
        return frozenset(
            name for index in passes for name in self.schedule.graph.passes[index].params if name
        )

    def param_grad(self, name: str, param: torch.Tensor) -> torch.Tensor:
        """The gradient of a parameter in the arena, of float32 in the parameter's layout."""
        if name not in self._grad_views:
            ((_, view),) = self.outputs(self.schedule.graph.param_grads[name][0])
            self._grad_views[name] = view.as_strided(param.shape, param.stride())
        return self._grad_views[name]

    def _copy_out(
        self,
        buffer: str,
        value: Value,
        dtype: torch.dtype,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> torch.Tensor:
        shape = [value.shape[axis] for axis in value.torch_axes]
        form = memory_format if len(shape) == 4 else torch.contiguous_format
        result = torch.empty(shape, dtype=dtype, device=self._arena.device, memory_format=form)
        target, tiles = channels_first(result, value), self.schedule.graph.row_tiles
        for place, held in self.outputs(buffer):
            view = held if tiles > 1 else held.view(-1, *value.shape[1:])
            for _, rows, source in by_sample(target, view, place, tiles, 2):
                self._kernels.unstage(source, rows)
        return result

    def outputs(self, name: str) -> list[tuple[Place, torch.Tensor]]:
        """The rows of an output in the arena. Valid until the next phase runs."""
        buffer = self.schedule.graph.buffers[name]
        places = self._outputs[name]
        return [(place, place_view(self._memory, buffer, place)) for place in places]

    def close(self) -> None:
        """Drop calls and graphs. Arena and slab stay with their owners."""
        self._dead = "closed"
        self.suspend()

    def _prepare(self) -> None:
        self.suspend()
        arena, pages = self._arena.bytes, self.schedule.pages
        if pages is not None:
            self._mapping = self._arena.mapped(pages)
            arena = self._mapping.bytes
        peer = NO_BYTES if self._peer is None else self._peer.bytes
        self._memory = ByteViews(arena, self._slab.bytes, self.counts, peer, self._file)
        calls = self._bind(self._tensors, by_unit=self._by_unit)
        if self._arena.device.type == "cuda":
            self._executor = self._capture(calls)
        else:
            self._executor = CpuExecutor(
                self.schedule, self._memory, calls, seed=self._order_seed, clock=self._clock
            )
        self._generations = self._present_generations()

    def _present_generations(self) -> tuple[int, int, int]:
        peer = 0 if self._peer is None else self._peer.generation
        return self._arena.generation, self._slab.generation, peer

    def _capture(self, calls: list[Call]) -> CudaExecutor:
        """Run everything once on scratch bytes, which loads all kernels, then capture."""
        device, rehearsal = self._arena.device, self._rehearsal()
        if self._kernels_name == "triton":
            beside: list[Callable[[], object]] = [*self._inputs.usual_fills(self._memory)]
            beside.append(partial(first_meeting, device))
            compile_launches(self.schedule, rehearsal, beside, device, self._progress)
        executor = CudaExecutor(
            self.schedule,
            calls,
            device=device,
            file=self._file,
            delay_seed=self._delay_seed,
            captures=self._captures,
        )
        executor.run_eagerly(0, len(self.schedule.steps), rehearsal)
        self._capture_phases(executor)
        return executor

    def _capture_phases(self, executor: CudaExecutor) -> None:
        for number, phase in enumerate(self.phases):
            if self._progress is not None:
                self._progress("capturing", number / len(self.phases))
            if phase not in executor.captured:
                executor.capture(*phase)
        if self._progress is not None:
            self._progress("capturing", 1.0)

    def _rehearsal(self) -> list[Call]:
        """The calls of all steps, on dummy tensors in place of those that they update."""
        updates, room = self._tensors.updates, self._arena.bytes
        scratch = {name: stand_ins(tensors, room) for name, tensors in updates.items()}
        control = without_group(self._tensors.control)
        tensors = Tensors(self._tensors.params, scratch, control)
        return without_file(self.schedule, self._bind(tensors, by_unit=False))

    def _bind(self, tensors: Tensors, *, by_unit: bool) -> list[Call]:
        made = self.schedule, self._memory, tensors, self._kernels
        return bind(*made, by_unit=by_unit, copies=self._copies)
