"""What a forward does beside its result: it is part of the network, or refused by name and line."""

import gc
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Protocol
from weakref import ReferenceType

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from .aliases import storage_of
from .calls.call import UNNAMED, Call, UnsupportedCallError, nested
from .calls.translation import rearranges_in_place, torch_name
from .formulas import name_of
from .recorded_calls import RecordedCalls, Watch, changed_by
from .refusals import caller, shown
from .stand_ins import StandIns

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
    graded: bool
    evaluating: bool
    stand_ins: StandIns
    proxies: list[ReferenceType[fx.Proxy]]

    def path_now(self) -> str:
        """The running module's path below the traced one."""

    def evaluated(self, run: Callable[[], Any]) -> Any:
        """What `run` returns; its calls are no part of the network."""


class SideEffects(TorchFunctionMode):
    """Watches a traced forward for writes to the module's tensors and attributes, and lost maps.

    Calls that read no map are `recorded`.
    """

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self.tracer = tracer
        self.refused: list[str] = []
        self.recorded = RecordedCalls(tracer.stand_ins, tracer.evaluated)
        self._records = True
        self._counted: dict[str, str] = {}  # refusals by names of batch counters
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
        if self.tracer.evaluating or any(isinstance(each, fx.Proxy) for each in args):
            return func(*args, **kwargs)
        return self.noted(func, func, args, kwargs)

    def noted(
        self, run: Callable[..., Any], function: Any, args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        """What `run` makes of the arguments of a call of `function`; what it changes is noted."""
        records, self._records = self._records, False  # and nothing that runs inside
        self._refuse_hooks(name_of(function), args)
        if "batch_norm" in name_of(function):
            run = partial(self._watched, run)
        try:
            result, written = changed_by(partial(run, *args, **kwargs), (args, kwargs))
        finally:
            self._records = records
        if records:
            self.recorded.add(function, (args, kwargs), result, written)
        for tensor in written:
            self._note_write(tensor, name_of(function), args[1:])
        return result

    def _watched(self, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What a normalization makes; refused where it tracks statistics of no map."""
        watch = Watch(self.tracer.stand_ins.twins.values())
        with watch:
            result = run(*args, **kwargs)
        if watch.effect is not None:
            path = self.tracer.path_now() or type(self.tracer.net).__name__
            reason = "batch_norm of a parameter changes statistics, which a step would not"
            self.refused.append(f"{path}: {reason}{shown(caller())}")
        return result

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
                raise UnsupportedCallError(_written(torch_name(node), str(source.target)))

    def tracks(self, call: Call) -> bool:
        """Whether a call, or one whose result it reads, changes buffers of the module's."""
        return any(
            each.attrs.get("training") and any(buffer is not None for buffer in each.state)
            for each in nested(call)
        )

    def counter_of(self, call: Call) -> str | None:
        """The counter that the module increased itself before a normalization of a batch."""
        mean = call.state[0] if call.kind == "batch_norm" and len(call.state) == 3 else None
        if mean is None or not call.attrs["training"] or call.state[2] is not None:
            return None
        name = str(mean.target).rpartition(".")[0]
        counter = f"{name}.{COUNTER}" if name else COUNTER
        return counter if self._counted.pop(counter, None) else None

    def look_back(self) -> None:
        """Note the attributes that have changed, and the maps that are still held."""
        self.refused += self._counted.values()
        changes = self.tracer.stand_ins.changes()
        holders = [each for each in changes if not _is_torchs(each[0])]
        for module, attribute in holders:
            path = self.tracer.stand_ins.path(module) or type(self.tracer.net).__name__
            line = self._set_at.get((id(module), attribute), "")
            self.refused.append(
                f"{path}: forward changes the attribute {attribute}, which a step would not{line}"
            )
        if not holders:
            self.refused += self._held_maps()

    def _held_maps(self) -> list[str]:
        """Refusals for maps that something outside the module still holds."""
        if any(ref() is not None for ref in self.tracer.proxies):
            gc.collect()  # of objects that refer to one another
        held = [proxy for ref in self.tracer.proxies if (proxy := ref()) is not None]
        return [
            f"{proxy.node.meta['within'] or type(self.tracer.net).__name__}:"
            f" {proxy.node.meta['name']} is still held after forward, as by a hook, a list or a"
            f" global, which a step would not fill{shown(proxy.node.meta['at'])}"
            for proxy in held[:1]
        ]

    def _note_write(self, tensor: Tensor, function: str, others: Sequence[Any]) -> None:
        """Note a write to a tensor of the module's, if it is one, that no map is part of."""
        name = self._name_of(tensor)
        if name is None:
            return
        path = self.tracer.path_now() or type(self.tracer.net).__name__
        text = f"{path}: {_written(function, name)}{shown(caller())}"
        counts = function in ("add_", "__iadd__") and len(others) == 1 and others[0] == 1
        if name.rpartition(".")[2] == COUNTER and counts and name not in self._counted:
            self._counted[name] = text
        else:
            self.refused.append(text)

    def _name_of(self, tensor: Tensor) -> str | None:
        """The name of the parameter, buffer or attribute whose storage a tensor has."""
        key = storage_of(tensor)
        for name, twin in self.tracer.stand_ins.twins.items():
            if storage_of(twin) == key:
                return name
        return self.tracer.stand_ins.attribute_of(tensor)

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


def _written(function: str, name: str) -> str:
    if name.startswith(UNNAMED):
        return f"{function} writes a map into a tensor that does not come from the inputs"
    return f"{function} changes {name} of the module, which a step would not"


def _is_torchs(module: nn.Module) -> bool:
    """Whether a module is of torch's own classes, which change nothing that a step depends on."""
    return type(module).__module__.startswith("torch.nn.")
