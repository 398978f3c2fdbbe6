"""virtualize: a network in the user's own loop, whose halves of a step run one schedule."""

import copy
import inspect
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..errors import EngineError, InputError
from ..graph import Network
from ..ops import Settings
from ..ops.eager import opaque_nbytes
from ..ops.expand import Mode
from ..planner.ir.costs import Costs
from ..planner.ir.plan import Plan
from ..planner.ir.schedule import Schedule
from ..planner.ir.settings import DEFAULT_POLICY
from ..planner.make import DEFAULT_CHUNK_SIZE
from ..planner.policies import policy_named
from ..planner.timing.calibrate import Calibration
from ..runtime.runner import Runner
from ..trace.guards.inputs import check_inputs
from ..trace.trace import trace
from ..units import parse_bytes, parse_limit
from .build import ChunkSize, Progress, chunks_of, give_lazy_parameters, resolve_dtype, with_chunks
from .core import Chosen, Core, Options, PlanRequest, Updates, asked_for, one_device, write_control
from .gradients import check_saving, check_unchanged, versions_of, with_gradients
from .module_state import restored_after_failure

REFUSED = ("DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")


@dataclass(frozen=True, slots=True)
class _Key:
    """What one schedule is made for; `state` is the number of the network's state."""

    shapes: tuple[tuple[int, ...], ...]
    mode: Mode
    state: int
    input_grads: frozenset[int]
    dtype: str
    grad_mode: bool  # in which forward is traced


@dataclass(frozen=True, slots=True)
class Asked:
    """What the caller asked of every plan: a compute type (None: torch's own), opaque ops."""

    dtype: str | None
    opaque: bool
    device: torch.device  # where a network without parameters computes


def virtualize(
    net: nn.Module,
    example_inputs: Tensor | tuple[Tensor, ...],
    *,
    budget: int | str | None = None,
    host_budget: int | str | None = None,
    policy: str | None = None,
    dtype: str | None = None,
    chunk_size: ChunkSize = None,
    sections: int | None = None,
    lead: int | None = None,
    copies: str | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    reserve: int | str | None = None,
    opaque: bool = False,
    kernels: str | None = None,
    order_seed: int | None = None,
    delay_seed: int | None = None,
    costs: Costs | None = None,
    feedback: bool = True,
    clock: Costs | None = None,
    progress: Progress | None = None,
) -> "Virtualized":
    """`net` as a module of the same parameters whose steps stay inside `budget` device bytes.

    - `example_inputs`: tensors [N, ...] whose shapes are planned at once. Other shapes are planned
      when they first appear.
    - `budget`: bytes of parameters, gradients, maps, workspaces, and the state of `optimizer` or
      `reserve` bytes for what the engine cannot see. "min" is the floor under `policy`.
    - `dtype`: "fp32", "tf32" or "bf16". Without it calls follow torch: the type of an autocast
      region, else bf16 for bfloat16 parameters (their float32 copies are counted), else what
      torch's switches allow of TF32.
    - `opaque`: torch's autograd runs submodules that hold unknown ops, in float32. Each reads and
      makes one tensor, draws no random numbers and changes no buffers. Its input is kept, and it
      runs again in backward. Torch's memory for it is counted, but not held to the budget.
    - `chunk_size`, `lead`, `copies`, `host_budget` and `feedback`: as Trainer's.

    Raises BudgetError with the floor for a budget below it, UnsupportedOpError for an unknown op.
    """
    _refuse_wrappers(net)
    inputs = example_inputs if isinstance(example_inputs, tuple) else (example_inputs,)
    give_lazy_parameters(net, *inputs, opaque=opaque)
    given = torch.device("cpu") if inputs[0].is_meta else inputs[0].device
    device = one_device(dict(net.named_parameters()), given)
    settings = Settings(
        dtype=resolve_dtype(dtype, device),
        chunk_size=DEFAULT_CHUNK_SIZE,
        mode=Mode.AUTOGRAD,
        sections=sections,
        reserve=(parse_bytes(reserve) or 0) + _state_nbytes(net, optimizer) + _given_nbytes(net),
        fuse=policy_named(policy or DEFAULT_POLICY).fused,
    )
    settings = with_chunks(settings, chunks_of(chunk_size))
    asked = asked_for(policy, lead, copies)
    limits = PlanRequest(parse_limit(budget), parse_bytes(host_budget), asked)
    options = Options(
        kernels,
        order_seed,
        delay_seed,
        costs,
        progress=progress,
        feedback=feedback,
        clock=clock,
        sized=chunk_size is not None or sections is not None,
    )
    virtualized = Virtualized(net, settings, limits, options, Asked(dtype, opaque, device))
    virtualized.prepare(*inputs)
    return virtualized


class Virtualized(nn.Module):
    """A network whose feature maps live in a planned arena.

    It shares the registries of the module that it was made from, so that parameters, buffers,
    submodules, their names and state_dict are that module's own.
    One forward may be open at a time: its maps lie in the arena until its backward has run.
    """

    _net: nn.Module

    def __init__(
        self,
        net: nn.Module,
        settings: Settings,
        limits: PlanRequest,
        options: Options,
        asked: Asked,
    ) -> None:
        super().__init__()
        _break_compiled_graphs()
        for registry in ("_parameters", "_buffers", "_modules"):
            self.__dict__[registry] = net.__dict__[registry]
        self.__dict__["_net"] = net
        self.training = net.training
        self._settings, self._limits, self._options = settings, limits, options
        self._asked = asked
        self._core: Core | None = None
        self._last: _Key | None = None
        self._open = 0
        self._forwards = 0
        self._lock = threading.RLock()  # several threads share one arena

    @property
    def schedule(self) -> Schedule:
        """The schedule that was used, or planned, last."""
        if self._core is None or self._last not in self._core.runners:
            raise EngineError("nothing is planned yet; call the module, or prepare(*inputs), first")
        return self._core.runners[self._last].schedule

    @property
    def plan(self) -> Plan:
        """What happens to every feature map, and why."""
        return self.schedule.plan

    @property
    def feedback(self) -> Calibration | None:
        """The step that was measured last on inputs like the last, beside its prediction."""
        return None if self._core is None else self._core.feedback(self._last)

    def measure_next(self) -> None:
        """Measure the next step, on a GPU; `feedback` then names what misses its prediction."""
        self._core_now().measures_next = True

    @property
    def replanning(self) -> bool:
        """Whether a plan is being made anew in another process, or waits for the next forward."""
        return self._core is not None and self._core.replanning

    def settle(self) -> None:
        """Wait for plans that are being made anew by what the first steps took.

        They are taken over at once, or by the next forward while a forward waits for its backward.
        """
        core = self._core
        if core is None:
            return
        keys: Iterable[Any] = core.wait_for_plans()
        for key in keys:
            if not self._open:
                core.runner(key, partial(self._chosen, key), _no_updates, begins=True)

    def prepare(self, *inputs: Tensor) -> None:
        """Plan and capture for inputs of these shapes."""
        self._runner(self._key(inputs, graded=self._trains(inputs)))

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """The network's outputs, copied out of the arena; its own for a batch of no samples.

        Arguments are as the network's forward has them. Under torch.compile this is a graph break.
        """
        inputs = self._tensors(arguments, named)
        if any(x.dim() > 0 and len(x) == 0 for x in inputs):
            return self._net(*inputs)
        if nn.parallel.DistributedDataParallel._active_ddp_module is not None:
            raise EngineError(
                "DistributedDataParallel around a virtualized network is not supported yet; "
                "train on one GPU"
            )
        if torch._C._are_functorch_transforms_active():
            raise EngineError(
                "transforms of torch.func (vmap, grad, jvp) do not reach into a virtualized"
                " network; call backward or torch.autograd.grad, or use the network itself"
            )
        with self._lock:
            return self._stepped(inputs)

    def _stepped(self, inputs: tuple[Tensor, ...]) -> Any:
        """The outputs of one step's first half, as a node of torch's graph."""
        graded = self._trains(inputs) and torch.is_grad_enabled()
        if graded:
            check_saving()
        key = self._key(inputs, graded=graded)
        runner = self._runner(key, begins=True)
        core, network = self._core_now(), runner.schedule.graph.network
        check_inputs(network, inputs, key.input_grads)
        computed: dict[str, Tensor] = {}
        if network.formulas:
            with core.on_device(), torch.set_grad_enabled(graded):
                computed = core.computed.values(network, core.tensors)
        given = {**core.params, **computed}.items()
        trained = {name: each for name, each in given if graded and each.requires_grad}
        call = _Call(self, runner, key, len(inputs), tuple(trained))
        step: Any = _Step  # whose `apply` has types from torch 2.15 on
        outputs = step.apply(call, *inputs, *trained.values())
        return network.gather(outputs)

    def _tensors(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Tensor, ...]:
        """The tensors among the arguments of a call, in order; others must be as by default."""
        if not named and all(isinstance(each, Tensor) for each in arguments):
            return arguments
        bound = inspect.signature(self._net.forward).bind(*arguments, **named)
        parameters = bound.signature.parameters.values()
        values = list(bound.arguments.items())
        while values and _is(values[-1][1], bound.signature.parameters[values[-1][0]].default):
            values.pop()
        places = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
        for (name, value), place in zip_longest(values, places[: len(values)]):
            if not isinstance(value, Tensor) or name != place:
                raise InputError(
                    f"argument {name} is {repr(value)[:60]}; a virtualized network takes tensors,"
                    " without gaps between them, and other arguments as by default"
                )
        return tuple(value for _, value in values)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Virtualized":
        """A copy of the parameters with the same settings; it plans anew at its first call."""
        options = replace(self._options, slab=None)
        net = copy.deepcopy(self._net, memo)
        return Virtualized(net, self._settings, self._limits, options, self._asked)

    def __reduce__(self) -> tuple[Any, ...]:
        options = replace(self._options, slab=None, costs=None, progress=None, clock=None)
        return Virtualized, (self._net, self._settings, self._limits, options, self._asked)

    def train(self, mode: bool = True) -> "Virtualized":
        super().train(mode)
        self._net.training = mode
        return self

    def close(self) -> None:
        """Give back arena, graphs and slab."""
        self._open = 0
        if self._core is not None:
            self._core.close()
            self._core = None

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> "Virtualized":
        """Moves and casts reach the network's parameters; plans for the old ones are dropped."""
        self.close()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def _trains(self, inputs: Iterable[Tensor]) -> bool:
        """Whether a step on these inputs has gradients: of parameters or of inputs."""
        return any(each.requires_grad for each in (*self.parameters(), *inputs))

    def _core_now(self) -> Core:
        if self._core is None:
            device = self._asked.device
            with torch.inference_mode(False):
                self._core = Core(self._net, self._limits, self._options, device=device)
        return self._core

    def _key(self, inputs: tuple[Tensor, ...], *, graded: bool) -> _Key:
        wants = frozenset(i for i, x in enumerate(inputs) if graded and x.requires_grad)
        mode = Mode.AUTOGRAD if graded else Mode.INFER
        shapes, core = tuple(tuple(x.shape) for x in inputs), self._core_now()
        state, dtype = core.look(), core.dtype_now(self._asked.dtype)
        return _Key(shapes, mode, state, wants, dtype, core.grad_mode(graded))

    def _runner(self, key: _Key, *, begins: bool = False) -> Runner:
        core = self._core_now()
        before, is_open = core.preparations, self._open
        self._open = 0  # planning and capture take the arena, and with it an open forward's maps
        with torch.inference_mode(False):  # what is made here serves later training steps, too
            runner = core.runner(key, partial(self._chosen, key), _no_updates, begins=begins)
        if core.preparations == before:
            self._open = is_open
        self._last = key
        return runner

    def _chosen(self, key: _Key) -> Chosen:
        core = self._core_now()
        core.report("tracing", 0.0)
        inputs = tuple(
            torch.empty(shape, device="meta", requires_grad=number in key.input_grads)
            for number, shape in enumerate(key.shapes)
        )
        network = trace(self._net, inputs, opaque=self._asked.opaque, graded=key.grad_mode)
        core.report("tracing", 1.0)
        settings = replace(
            self._settings,
            dtype=key.dtype,
            mode=key.mode,
            input_grads=frozenset(network.inputs[i] for i in key.input_grads),
            opaque_nbytes=opaque_nbytes(network, core.device),
        )
        return core.chosen(network, settings)

    def _run_forward(
        self, runner: Runner, key: _Key, inputs: tuple[Tensor, ...]
    ) -> tuple[int, tuple[Tensor, ...]]:
        """Run the first half; returns this forward's number and its outputs."""
        core = self._core_now()
        network = runner.schedule.graph.network
        seed = int(torch.randint(0, 2**31, ()).item())  # torch's generator, as its dropout does
        write_control(core.control_bytes, (), 1.0, seed)
        self._forwards += 1
        self._open = self._forwards
        with core.on_device(), restored_after_failure(core.state_before(runner)):
            core.change_state(runner)
            core.copy_params()
            for name, value in zip(network.inputs, inputs, strict=True):
                runner.fill(name, _checked(name, value, core.device))
            core.run(key, 0)
            form = _output_form(inputs[0])
            outputs = tuple(runner.read(name, **form) for name in network.outputs)
        return self._open, outputs

    def _run_backward(
        self, runner: Runner, key: _Key, number: int, grads: Sequence[Tensor]
    ) -> None:
        """Run the second half, for the forward `number` if its maps are still there."""
        if self._open != number:
            raise EngineError(
                "the maps of this forward are gone: another forward of this network ran after it, "
                "or its backward has run already; call backward once after each forward, or "
                "virtualize a second copy (retain_graph cannot help)"
            )
        self._open = 0
        graph = runner.schedule.graph
        totals: dict[str, Tensor] = {}
        for output, grad in zip(graph.network.outputs, grads, strict=True):
            name = f"grad {output}"  # an output may be returned twice
            totals[name] = totals[name] + grad if name in totals else grad
        for buffer, value in graph.inputs.items():
            if value in totals:
                runner.fill(buffer, totals[value])
        self._core_now().run(key, 1)


@cache
def _break_compiled_graphs() -> None:
    """Let torch.compile leave forwards alone, from the first virtualized network on.

    To ask for it imports torch's compiler, which takes as long as torch: Trainers need none.
    """
    forward: Any = torch.compiler.disable(Virtualized.forward)
    Virtualized.forward = forward  # type: ignore[method-assign]


@dataclass(frozen=True, slots=True)
class _Call:
    """A forward: who runs it by what, and how the tensors that it is given divide.

    So many inputs come first, then the parameters called `trained`, computed ones among them.
    """

    owner: Virtualized
    runner: Runner
    key: _Key
    num_inputs: int
    trained: tuple[str, ...]


class _Step(torch.autograd.Function):
    """The two halves of a schedule as one node of torch's graph.

    Parameters are among its inputs, so that hooks and accumulation work.
    """

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Tensor) -> Any:
        inputs, graph = tensors[: call.num_inputs], call.runner.schedule.graph
        ctx.call = call
        ctx.inputs = [(tuple(x.shape), x.dtype) for x in inputs]
        core = call.owner._core_now()
        found = {**core.params, **core.computed.of(graph.network)}
        ctx.trained = {name: found[name] for name in call.trained}
        ctx.number, outputs = call.owner._run_forward(call.runner, call.key, inputs)
        ctx.versions = versions_of(graph.network, ctx.trained)  # which the forward may change
        ctx.forms = [(y.shape, y.dtype, y.device) for y in outputs]
        names = zip(graph.network.outputs, outputs, strict=True)
        trained = {n.removeprefix("grad ") for n in graph.inputs.values() if n.startswith("grad ")}
        ctx.mark_non_differentiable(*(y for name, y in names if name not in trained))
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        call: _Call = ctx.call
        network = call.runner.schedule.graph.network
        check_unchanged(network, ctx.trained, ctx.versions)
        filled = [
            torch.zeros(shape, dtype=dtype, device=device) if grad is None else grad
            for grad, (shape, dtype, device) in zip(grads, ctx.forms, strict=True)
        ]
        with call.owner._lock:
            call.owner._run_backward(call.runner, call.key, ctx.number, filled)
            return None, *_gradients(ctx, with_gradients(network, grads))


def _gradients(ctx: Any, reached: frozenset[str] | None) -> list[Tensor | None]:
    """The gradients of inputs and trained parameters, none where torch has none.

    `reached` are those on which an output with a gradient depends; None of all that any depends on.
    """
    runner, graph = ctx.call.runner, ctx.call.runner.schedule.graph
    inputs = [
        runner.read_grad(name, dtype)
        if name in graph.input_grads and (reached is None or name in reached)
        else None
        for name, (_, dtype) in zip(graph.network.inputs, ctx.inputs, strict=True)
    ]
    params = [
        runner.read_param_grad(name, param) if reached is None or name in reached else None
        for name, param in ctx.trained.items()
    ]
    return inputs + params


def _no_updates(_: Network) -> Updates:
    """What the passes of a step in a user's loop change: no parameter."""
    return {}


def _is(value: Any, default: Any) -> bool:
    """Whether an argument is as by default."""
    if isinstance(value, Tensor):
        return False
    return value is default or (type(value) is type(default) and bool(value == default))


def _checked(name: str, value: Tensor, device: torch.device) -> Tensor:
    if value.device != device:
        raise InputError(
            f"{name} lies on {value.device}, the network on {device}; move one of them"
        )
    return value.detach()


def _output_form(x: Tensor) -> dict[str, Any]:
    """Type and memory format of outputs: the input's, under autocast the region's type."""
    kind = x.device.type
    autocast = torch.is_autocast_enabled(kind)
    last = x.dim() == 4 and not x.is_contiguous()
    last = last and x.is_contiguous(memory_format=torch.channels_last)
    return {
        "dtype": torch.get_autocast_dtype(kind) if autocast else x.dtype,
        "memory_format": torch.channels_last if last else torch.contiguous_format,
    }


def _refuse_wrappers(net: nn.Module) -> None:
    for module in net.modules():
        found = [base.__name__ for base in type(module).__mro__ if base.__name__ in REFUSED]
        if found:
            raise InputError(
                f"{found[0]} is not supported yet; pass the module inside it and train on one GPU"
            )


def _state_nbytes(net: nn.Module, optimizer: torch.optim.Optimizer | None) -> int:
    """Bytes of optimizer state: two tensors a parameter for Adam's kin, one for SGD's momentum."""
    if optimizer is None:
        return 0
    trained = sum(p.numel() * 4 for p in net.parameters() if p.requires_grad)
    if any("betas" in group for group in optimizer.param_groups):
        return 2 * trained
    return trained if any(group.get("momentum", 0) for group in optimizer.param_groups) else 0


def _given_nbytes(net: nn.Module) -> int:
    """Bytes of parameters that are not float32, beside the copies that are."""
    given = (param for param in net.parameters() if param.dtype != torch.float32)
    return sum(param.numel() * param.element_size() for param in given)
