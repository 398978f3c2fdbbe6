"""Side effects of a forward: part of the network, or refused by name and line."""

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.proxy import TraceError
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from ...ops.traced_op import UNNAMED, TracedOp, UnsupportedCallError, nested
from ...ops.translate import rearranges_in_place, torch_name
from ..source_lines import location_text, source_line
from ..state.functionalize import base_of, storage_of
from ..state.meta_answers import LostWriteError, answer, reads_values, sets_attribute, torch_name_of
from ..state.recorded_call import RecordedCall, recorded_call
from ..state.recorded_calls import RecordedCalls
from ..state.tape import COUNTER, StateTape, WatchedCall, takes_maps, tensors_in, watched
from ..traced_call import TracedCall

KEPT = frozenset(  # functions and methods that count although nothing reads their result
    {
        *("_assert", "_assert_async", "_assert_scalar", "backward", "requires_grad_"),
        *("register_hook", "register_post_accumulate_grad_hook", "retain_grad"),
    }
)
HOOKS = ("register_hook", "register_post_accumulate_grad_hook", "backward")
TRACKING = (
    "batch_norm",
    "counted_batch_norm",
    "instance_norm",
)  # calls that may write the statistics that they read


class RefusedError(TraceError):
    """The trace cannot go on; the message is a refusal that is noted already."""


class SideEffects(TorchFunctionMode):
    """Watches a traced forward for writes to tensors and attributes, and for maps that stay.

    Calls on tensors that come from no map are on the `tape`, for changes of state, and in
    `recorded`, for computed parameters.
    """

    def __init__(self, call: TracedCall) -> None:
        super().__init__()
        self.call = call
        self.tape = StateTape(call.meta_copies)
        self.recorded = RecordedCalls(call.meta_copies, call.evaluated, call.device)
        self._records = True
        self._counted: dict[str, int] = {}  # places on the tape by names of batch counters
        self._set_at: dict[tuple[int, str], str] = {}
        self._set: Callable[..., None] = nn.Module.__setattr__
        self._grad_mode = True

    def __enter__(self) -> "SideEffects":
        self._grad_mode = torch.is_grad_enabled()
        torch.set_grad_enabled(self.call.graded)
        self._set = nn.Module.__setattr__
        nn.Module.__setattr__ = self._noting_lines()  # type: ignore[method-assign]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        nn.Module.__setattr__ = self._set  # type: ignore[method-assign]
        torch.set_grad_enabled(self._grad_mode)
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.call.evaluating or takes_maps((args, kwargs)):
            return func(*args, **kwargs)
        return self.called(func, *args, **kwargs)

    def called(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """The result of a call that the tracer makes in the place of one of the network's."""
        run = partial(answer, function, args, kwargs, self.call.device)
        return self.noted(run, function, args, kwargs)

    def noted(
        self, run: Callable[[], Any], function: Any, args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        """The result of `run`, which calls `function` on these arguments; its writes are noted."""
        self._check_reads(function, args)
        self._refuse_hooks(torch_name_of(function), args)
        if not self._records:
            return run()
        self._records = False  # calls inside this one
        try:
            return self._recorded(run, function, (args, kwargs))
        finally:
            self._records = True

    def _recorded(
        self, run: Callable[[], Any], function: Any, given: tuple[tuple[Any, ...], Any]
    ) -> Any:
        tensors = [each for each in tensors_in(given) if not is_lazy(each)]
        forms = [*map(_properties, tensors)]
        done = self._done(run, function)
        written = [tensor for tensor in tensors if storage_of(tensor) in done.written]
        formed = _changed_tensors(tensors, _properties, forms)
        call = recorded_call(
            function,
            given,
            done.result,
            written=written,
            formed=formed,
            draws=done.draws,
            within=self.call.where(),
        )
        self.recorded.add(call)
        name = torch_name_of(function)
        if sets_attribute(function):
            name = f"setting .{name}"
            call = replace(call, written=tuple(tensors[:1]), formed=tuple(tensors[:1]))
        if not self._refuses(name, call.written, call.formed):
            self._put_on_tape(call)
        return done.result

    def _done(self, run: Callable[[], Any], function: Any) -> WatchedCall:
        """The outcome of a call on tensors that come from no map."""
        try:
            return watched(function, run)
        except LostWriteError as error:
            reason = f"{torch_name_of(function)} writes tensors of the module into one that is not"
            raise RefusedError(self.call.refuse(reason)) from error

    def _check_reads(self, func: Any, args: tuple[Any, ...]) -> None:
        """Refuse to read values: control flow by them would be that of one step alone."""
        if reads_values(func, args):
            names = [self._name_of(each) for each in args if isinstance(each, Tensor)]
            what = next(filter(None, names), "a tensor that forward computes")
            called = torch_name_of(func)
            called = f"{called.strip('_')}()" if called.startswith("__") else called
            reason = f"{called} reads a value of {what}, which is not known while tracing"
            raise RefusedError(self.call.refuse(reason))

    def _refuse_hooks(self, function: str, args: tuple[Any, ...]) -> None:
        """Refuse hooks on gradients of parameters and of tensors computed of them."""
        tensors = [each for each in args[:1] if isinstance(each, Tensor)]
        if function in HOOKS and any(self.recorded.made(x) or self._name_of(x) for x in tensors):
            reason = f"{function} of a parameter, which a step would not run"
            self.call.refused.append(f"{self.call.where()}: {reason}{location_text(source_line())}")

    def check(self, node: fx.Node, written: Sequence[fx.Node]) -> None:
        """Refuse writes by a call on maps to tensors of no map, except the state of its op."""
        call = node.meta["call"]
        for source in written:
            if call is None or source not in call.state:
                node.meta["kept"] = True
                base = base_of(source)
                name = UNNAMED if base.meta.get("drawn") else str(base.target)
                raise UnsupportedCallError(_written(torch_name(node), name))

    def tracks(self, call: TracedOp) -> bool:
        """Whether a call, or an inner one, changes buffers of its module."""
        return any(each.tracks for each in nested(call))

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
        self.call.refused += [
            f"{self.call.title}: forward gives {name} another storage, which a step would not"
            for name in self.call.meta_copies.moved()
        ]
        written = self.call.evaluated(lambda: list(self.call.meta_copies.written_attributes()))
        title = self.call.title
        self.call.refused += [f"{title}: {_written('forward', name)}" for name in written]
        changes = [each for each in self.call.meta_copies.changes() if not self._puts_back(*each)]
        holders = [each for each in changes if not _is_torchs(*each)]
        for module, attribute in holders:
            path = self.call.meta_copies.path(module) or self.call.title
            line = self._set_at.get((id(module), attribute), "")
            self.call.refused.append(
                f"{path}: forward changes the attribute {attribute}, which a step would not{line}"
            )
        if not holders:
            self.call.refused += self._held_maps()
        self.call.refused += self._held_beside()

    def _puts_back(self, module: nn.Module, attribute: str) -> bool:
        """Whether an attribute is its tensor, moved or cast; it then gets that back.

        A step moves or casts the tensor again, to the same values.
        """
        copy, now = (
            self.call.meta_copies.attribute_copy(module, attribute),
            module.__dict__.get(attribute),
        )
        if copy is None or not isinstance(now, Tensor) or not self.recorded.moves(copy, now):
            return False
        module.__dict__[attribute] = copy
        return True

    def _held_beside(self) -> Iterator[str]:
        """Refusals for constants and modules of a forward that something holds behind it."""
        if any(ref() is not None for ref in self.call.apart):
            gc.collect()
        if any(ref() is not None for ref in self.call.apart):
            yield (
                f"{self.call.title}: a Sequential that is no part of the network is held, as in a"
                " list (register it, as in a ModuleList)"
            )
        if self.recorded.are_views_stale():
            yield (
                f"{self.call.title}: random numbers are written behind an operation that took a"
                " view of them (clone them first)"
            )
        if self.recorded.are_held(self.tape):
            yield (
                f"{self.call.title}: a constant or a mask is still held after forward, as by a"
                " cache, which another forward could read or write (register it as a buffer)"
                f"{self.recorded.constant_read_at}"
            )

    def _held_maps(self) -> list[str]:
        """Refusals for maps that an object outside the network still holds."""
        if any(ref() is not None for ref in self.call.proxies):
            gc.collect()  # of objects that refer to one another
        held = [proxy for ref in self.call.proxies if (proxy := ref()) is not None]
        return [
            f"{proxy.node.meta['within'] or self.call.title}:"
            f" {proxy.node.meta['name']} is still held after forward, as by a hook, a list or a"
            f" global, which a step would not fill{location_text(proxy.node.meta['at'])}"
            for proxy in held[:1]
        ]

    def _refuses(self, function: str, written: Sequence[Tensor], formed: Sequence[Tensor]) -> bool:
        """Refuse writes to attributes, and changes of a tensor's type, shape or storage."""
        if not written and not formed:
            return False
        if "batch_norm" in function:
            reason = "batch_norm of a parameter changes statistics, which a step would not"
            self.call.refused.append(f"{self.call.where()}: {reason}{location_text(source_line())}")
            return True
        copies = self.call.meta_copies.named()
        names = {self._name_of(tensor): "requires_grad" for tensor in formed}
        names |= {self._name_of(tensor): function for tensor in written}
        others = {self._name_of(tensor) for tensor in formed}
        refused = {n: each for n, each in names.items() if n and (n not in copies or n in others)}
        self.call.refused += [
            f"{self.call.where()}: {_written(each, name)}{location_text(source_line())}"
            for name, each in refused.items()
        ]
        return bool(refused)

    def _put_on_tape(self, call: RecordedCall) -> None:
        """Put a call on the tape; note which counter of batches it increases by one."""
        if not call.written and not any(True for _ in tensors_in(call.made)):
            return
        names = [self._name_of(tensor) or "" for tensor in call.written]
        added = call.name in ("add_", "__iadd__") and call.written
        if added and _is_one(*call.arguments[0][1:]) and names[0].rpartition(".")[2] == COUNTER:
            self._counted.setdefault(names[0], self.tape.place)
        self.tape.add(call)

    def _name_of(self, tensor: Tensor) -> str | None:
        """The name of the parameter, buffer or attribute whose storage a tensor has."""
        meta_copies = self.call.meta_copies
        return meta_copies.name_of_storage(tensor) or meta_copies.attribute_of(tensor)

    def _noting_lines(self) -> Callable[..., None]:
        def setattr_noting_line(module: nn.Module, name: str, value: Any) -> None:
            self._set_at[id(module), name] = location_text(source_line())
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


def _changed_tensors(
    tensors: list[Tensor], of: Callable[[Tensor], Any], before: list[Any]
) -> list[Tensor]:
    return [each for each, was in zip(tensors, before, strict=True) if of(each) != was]


def _properties(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.requires_grad, storage_of(tensor), tensor.dtype, tensor.shape, tensor.stride()


def _is_one(*arguments: Any) -> bool:
    return len(arguments) == 1 and isinstance(arguments[0], int) and arguments[0] == 1


def _written(function: str, name: str) -> str:
    if name.startswith(UNNAMED):
        return f"{function} writes a map into a tensor that does not come from the inputs"
    return f"{function} changes {name} of the module, which a step would not"


def _is_torchs(module: nn.Module, attribute: str) -> bool:
    """Whether torch's own code sets an attribute, on which no step depends.

    The module is of a torch class, or a torch hook computes the attribute before each call.
    """
    hooks = [type(x) for x in module._forward_pre_hooks.values() if _sets(x, attribute)]
    own = (kind.__module__.startswith("torch.nn.utils.") for kind in hooks)
    return type(module).__module__.startswith("torch.nn.") or any(own)


def _sets(hook: object, attribute: str) -> bool:
    return getattr(hook, "name", None) == attribute
