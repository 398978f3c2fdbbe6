"""What a forward does beside its result: it is part of the network, or refused by name and line."""

import gc
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Protocol
from weakref import ReferenceType

import torch
from torch import Tensor, fx, nn
from torch.fx.proxy import TraceError
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from ...ops.traced_op import UNNAMED, TracedOp, UnsupportedCallError, nested
from ...ops.translate import rearranges_in_place, torch_name
from ..diagnostics import caller, shown
from ..state.functionalize import base_of, storage_of
from ..state.meta_answers import LostWriteError, answer, reads_values, sets_attribute, torch_name_of
from ..state.meta_copies import StandIns
from ..state.recorded_calls import RecordedCalls
from ..state.tape import StateTape, Watched, takes_maps, tensors_in, watched

KEPT = frozenset(  # functions and methods that count though nothing reads their result
    {
        *("_assert", "_assert_async", "_assert_scalar", "backward", "requires_grad_"),
        *("register_hook", "register_post_accumulate_grad_hook", "retain_grad"),
    }
)
HOOKS = ("register_hook", "register_post_accumulate_grad_hook", "backward")
COUNTER = "num_batches_tracked"
TRACKING = ("batch_norm", "counted_batch_norm", "instance_norm")  # may write statistics they read


class Tracer(Protocol):
    """What SideEffects asks of the tracer; `proxies` are all those made."""

    net: nn.Module
    device: torch.device
    graded: bool
    evaluating: bool
    stand_ins: StandIns
    proxies: list[ReferenceType[fx.Proxy]]

    def path_now(self) -> str:
        """The running module's path below the traced one."""

    def refuse(self, reason: str) -> str:
        """Note a refusal at the line that runs; what it says."""

    def evaluated(self, run: Callable[[], Any]) -> Any:
        """What `run` returns; its calls are no part of the network."""


class RefusedError(TraceError):
    """The network asked for what is not known; the message is a refusal that is noted already."""


class SideEffects(TorchFunctionMode):
    """Watches a traced forward for writes to the module's tensors and attributes, and lost maps.

    Calls on tensors that come from no map are on the `tape`, and `recorded` for what ops read.
    """

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self.tracer = tracer
        self.refused: list[str] = []
        self.tape = StateTape(tracer.stand_ins)
        self.recorded = RecordedCalls(tracer.stand_ins, tracer.evaluated, tracer.device)
        self._records = True
        self._counted: dict[str, int] = {}  # places on the tape by names of batch counters
        self._set_at: dict[tuple[int, str], str] = {}
        self._set: Callable[..., None] = nn.Module.__setattr__
        self._grad_mode = True

    def __enter__(self) -> "SideEffects":
        self._grad_mode = torch.is_grad_enabled()
        torch.set_grad_enabled(self.tracer.graded)
        self._set = nn.Module.__setattr__
        nn.Module.__setattr__ = self._noting_lines()  # type: ignore[method-assign]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        nn.Module.__setattr__ = self._set  # type: ignore[method-assign]
        torch.set_grad_enabled(self._grad_mode)
        super().__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.tracer.evaluating or takes_maps((args, kwargs)):
            return func(*args, **kwargs)
        run = partial(answer, func, args, kwargs, self.tracer.device)
        return self.noted(run, func, args, kwargs)

    def noted(
        self, run: Callable[[], Any], function: Any, args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        """What `run` makes of the arguments of a call of `function`; what it changes is noted."""
        self._check_reads(function, args)
        self._refuse_hooks(torch_name_of(function), args)
        if not self._records:
            return run()
        self._records = False  # of what runs inside
        try:
            return self._recorded(run, function, (args, kwargs))
        finally:
            self._records = True

    def _recorded(
        self, run: Callable[[], Any], function: Any, given: tuple[tuple[Any, ...], Any]
    ) -> Any:
        tensors = [each for each in tensors_in(given) if not is_lazy(each)]
        forms = [*map(_form, tensors)]
        done = self._done(run, function)
        written = [tensor for tensor in tensors if storage_of(tensor) in done.written]
        formed = _unlike(tensors, _form, forms)
        self.recorded.add(function, given, done.result, (*written, *formed))
        name = torch_name_of(function)
        if sets_attribute(function):
            name, written, formed = f"setting .{name}", tensors[:1], tensors[:1]
        if not self._refuses(name, written, formed):
            why = "by random numbers" if done.draws else "in another form" if formed else ""
            self._record(function, given, done.result, written, why)
        return done.result

    def _done(self, run: Callable[[], Any], function: Any) -> Watched:
        """What comes of a call on tensors that come from no map."""
        try:
            return watched(function, run)
        except LostWriteError as error:
            reason = f"{torch_name_of(function)} writes tensors of the module into one that is not"
            raise RefusedError(self.tracer.refuse(reason)) from error

    def _check_reads(self, func: Any, args: tuple[Any, ...]) -> None:
        """Refuse to tell values: a course that hangs on them would be that of one step alone."""
        if reads_values(func, args):
            names = [self._name_of(each) for each in args if isinstance(each, Tensor)]
            what = next((name for name in names if name is not None), "what it is made of")
            reason = f"{torch_name_of(func)} reads values of the module ({what}) while it is traced"
            raise RefusedError(self.tracer.refuse(reason))

    def _refuse_hooks(self, function: str, args: tuple[Any, ...]) -> None:
        """Refuse hooks on gradients of parameters, and of what is computed of them."""
        tensors = [each for each in args[:1] if isinstance(each, Tensor)]
        if function in HOOKS and any(self.recorded.made(x) or self._name_of(x) for x in tensors):
            path = self.tracer.path_now() or type(self.tracer.net).__name__
            self.refused.append(
                f"{path}: {function} of a parameter, which a step would not run{shown(caller())}"
            )

    def check(self, node: fx.Node, written: Sequence[fx.Node]) -> None:
        """Refuse writes of a call on maps to tensors that come from no map, but those of its op."""
        call = node.meta["call"]
        for source in written:
            if call is None or source not in call.state:
                node.meta["kept"] = True
                raise UnsupportedCallError(_written(torch_name(node), str(base_of(source).target)))

    def tracks(self, call: TracedOp) -> bool:
        """Whether a call, or one whose result it reads, changes buffers of the module's."""
        return any(
            each.attrs.get("training") and any(buffer is not None for buffer in each.state)
            for each in nested(call)
        )

    def counter_of(self, call: TracedOp) -> str | None:
        """The counter that the module increased itself before a normalization of a batch."""
        mean = call.state[0] if call.kind == "batch_norm" and len(call.state) == 3 else None
        if mean is None or not call.attrs["training"] or call.state[2] is not None:
            return None
        name = str(mean.target).rpartition(".")[0]
        counter = f"{name}.{COUNTER}" if name else COUNTER
        place = self._counted.pop(counter, None)
        if place is None:
            return None
        self.tape.erase(place)
        return counter

    def look_back(self) -> None:
        """Note the attributes that have changed, and the maps that are still held."""
        self.refused += [
            f"{self._net}: forward gives {name} another storage, which a step would not"
            for name in self.tracer.stand_ins.moved()
        ]
        changes = self.tracer.stand_ins.changes()
        holders = [each for each in changes if not _is_torchs(*each)]
        for module, attribute in holders:
            path = self.tracer.stand_ins.path(module) or self._net
            line = self._set_at.get((id(module), attribute), "")
            self.refused.append(
                f"{path}: forward changes the attribute {attribute}, which a step would not{line}"
            )
        if not holders:
            self.refused += self._held_maps()

    @property
    def _net(self) -> str:
        return type(self.tracer.net).__name__

    def _held_maps(self) -> list[str]:
        """Refusals for maps that something outside the module still holds."""
        if any(ref() is not None for ref in self.tracer.proxies):
            gc.collect()  # of objects that refer to one another
        held = [proxy for ref in self.tracer.proxies if (proxy := ref()) is not None]
        return [
            f"{proxy.node.meta['within'] or self._net}:"
            f" {proxy.node.meta['name']} is still held after forward, as by a hook, a list or a"
            f" global, which a step would not fill{shown(proxy.node.meta['at'])}"
            for proxy in held[:1]
        ]

    def _refuses(self, function: str, written: list[Tensor], formed: list[Tensor]) -> bool:
        """Refuse changes of attributes, and of more than the numbers of the module's tensors."""
        if not written and not formed:
            return False
        if "batch_norm" in function:
            reason = "batch_norm of a parameter changes statistics, which a step would not"
            self.refused.append(f"{self._within()}: {reason}{shown(caller())}")
            return True
        twins = self.tracer.stand_ins.named()
        names = {self._name_of(tensor): "requires_grad" for tensor in formed}
        names |= {self._name_of(tensor): function for tensor in written}
        others = {self._name_of(tensor) for tensor in formed}
        refused = {n: each for n, each in names.items() if n and (n not in twins or n in others)}
        self.refused += [
            f"{self._within()}: {_written(each, name)}{shown(caller())}"
            for name, each in refused.items()
        ]
        return bool(refused)

    def _record(
        self, func: Any, given: tuple[Any, Any], result: Any, written: list[Tensor], why: str
    ) -> None:
        """Put a call on the tape; note which counter of batches it increases by one."""
        if not written and not any(True for _ in tensors_in(result)):
            return
        names = [self._name_of(tensor) or "" for tensor in written]
        counts = torch_name_of(func) in ("add_", "__iadd__") and written and _is_one(*given[0][1:])
        if counts and names[0].rpartition(".")[2] == COUNTER:
            self._counted.setdefault(names[0], self.tape.place)
        self.tape.record(func, given, result, written, why, self._within())

    def _within(self) -> str:
        return self.tracer.path_now() or self._net

    def _name_of(self, tensor: Tensor) -> str | None:
        """The name of the parameter, buffer or attribute whose storage a tensor has."""
        stand_ins = self.tracer.stand_ins
        return stand_ins.twin_of_storage(tensor) or stand_ins.attribute_of(tensor)

    def _noting_lines(self) -> Callable[..., None]:
        def setattr_noting_line(module: nn.Module, name: str, value: Any) -> None:
            self._set_at[id(module), name] = shown(caller())
            self._set(module, name, value)

        return setattr_noting_line


def has_effects(node: fx.Node) -> bool:
    """Whether a call counts though nothing reads its result."""
    return torch_name(node) in KEPT or rearranges_in_place(node)


def may_change_state(node: fx.Node, module: nn.Module) -> bool:
    """Whether a refused call, made by `module`, may change buffers that it reads."""
    if node.op == "call_module":
        return module.training and any(True for _ in module.buffers())
    read = [each.meta["value"] for each in node.all_input_nodes if each.op == "get_attr"]
    return torch_name(node) in TRACKING and any(not isinstance(x, nn.Parameter) for x in read)


def _unlike(tensors: list[Tensor], of: Callable[[Tensor], Any], before: list[Any]) -> list[Tensor]:
    """The tensors of which `of` no longer tells what it told before."""
    return [each for each, was in zip(tensors, before, strict=True) if of(each) != was]


def _form(tensor: Tensor) -> tuple[Any, ...]:
    """What a tensor is beside its numbers."""
    return tensor.requires_grad, storage_of(tensor), tensor.dtype, tensor.shape, tensor.stride()


def _is_one(*arguments: Any) -> bool:
    return len(arguments) == 1 and isinstance(arguments[0], int) and arguments[0] == 1


def _written(function: str, name: str) -> str:
    if name.startswith(UNNAMED):
        return f"{function} writes a map into a tensor that does not come from the inputs"
    return f"{function} changes {name} of the module, which a step would not"


def _is_torchs(module: nn.Module, attribute: str) -> bool:
    """Whether torch's own code sets an attribute, which changes nothing that a step depends on.

    It is of a module of torch's classes, or a weight that a hook of torch's computes before each
    call.
    """
    hooks = [type(x) for x in module._forward_pre_hooks.values() if _sets(x, attribute)]
    own = (kind.__module__.startswith("torch.nn.utils.") for kind in hooks)
    return type(module).__module__.startswith("torch.nn.") or any(own)


def _sets(hook: object, attribute: str) -> bool:
    return getattr(hook, "name", None) == attribute
