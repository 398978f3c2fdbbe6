"""The fx tracer behind `trace`: it records every torch call and the op that the call stands for.

While a module's forward runs once over fx proxies, every proxy carries a tensor of the meta device.
Sizes are plain numbers to the module's own code, no data is touched, and torch's version counters
show what in-place operations write. `node_records` lists what each node keeps in its `meta`.
"""

import operator
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_arg
from torch.fx.proxy import TraceError
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.lazy import LazyModuleMixin
from torch.utils._pytree import tree_leaves

from ..errors import InputError
from ..functional import drop_branch, normalize_batch
from ..ops.translate import cuts_gradient, torch_name
from .eager_fallback import as_returned
from .map_proxy import MapProxy, UnknownShapeError
from .meta_values import MetaValues
from .modules import BRANCH_DROPPERS, is_plain_layer, module_refusal
from .node_ops import NodeOps
from .node_records import NodeRecords
from .python.outputs import taken_apart
from .python.outside_writes import OutsideChanges
from .python.patched_torch import PatchedTorch
from .python.random_draws import HostDraws
from .python.side_effects import RefusedError, SideEffects
from .source_lines import FOREIGN, line_of_error, location_text, source_location
from .state.functionalize import Functionalizer, is_stale
from .state.meta_copies import MetaCopies
from .tensor_reads import TensorReads
from .traced_call import TracedCall


class Root(torch.nn.Module):
    """A module that calls the network inside it on placeholders."""

    def __init__(self, net: torch.nn.Module, tracer: "MetaTracer") -> None:
        super().__init__()
        self.net = net
        self.tracer = tracer

    def traced(self) -> Any:
        self.tracer.gather, outputs = taken_apart(self.net(*self.tracer.placeholders()))
        return outputs


class MetaTracer(fx.Tracer):
    """Traces one call of `net`; `inputs` are meta tensors by the names of the placeholders.

    The submodules at `eager_paths` are ops that run by torch's own code. `graded`
    tells whether torch records gradients where the network does not say otherwise. `stopped` says
    why the call could not be followed to its end, after the error `cause`.
    """

    traced_func_name = "traced"

    def __init__(
        self,
        net: torch.nn.Module,
        inputs: Mapping[str, Tensor],
        eager_paths: frozenset[str] = frozenset(),
        *,
        graded: bool = True,
    ) -> None:
        super().__init__()
        self.call = TracedCall(net, MetaCopies(net, _forward_of), graded=graded)
        self.inputs, self.eager_paths = inputs, eager_paths
        self.stopped: str | None = None
        self.cause: Exception | None = None
        self.gather: Callable[[Sequence[Any]], Any] = operator.itemgetter(0)
        self.functionalizer = Functionalizer(self._record)
        self.side_effects = SideEffects(self.call)
        values = MetaValues(self.call, inputs, self.side_effects)
        ops = NodeOps(
            self.call, values, self.side_effects, self.functionalizer, self.create_node, eager_paths
        )
        self.records = NodeRecords(self.call, values, ops, self.functionalizer, self.side_effects)
        self.reads = TensorReads(
            self.call, self.side_effects.recorded, self.create_node, self.proxy
        )
        self.layout_guard, self.input_guard = self.records.layout_guard, self.records.input_guard
        self._failed: str | None = None  # the path of the module whose forward raised
        self._decided: set[str] = set()  # lines that asked for a number or a condition
        self._host_draws = HostDraws()
        self._thread = threading.get_ident()  # others may call modules meanwhile

    def trace_net(self) -> fx.Graph:
        """The graph of one call, with meta copies in the place of parameters and buffers.

        Where the call could not be followed to its end, `stopped` says why. Raises InputError for
        an error that torch raises, too.
        """
        outside = OutsideChanges(self.call.net)
        with self.call.meta_copies, outside:
            try:
                with (
                    self.side_effects,
                    PatchedTorch(self.call, self.side_effects, self.create_proxy),
                ):
                    self.trace(Root(self.call.net, self))
            except RefusedError as error:
                self.stopped = str(error)
            except TraceError as error:
                self.stopped = self.call.refusal(str(error), self._failed)
            except FOREIGN as error:
                if error is self.records.fault:
                    raise
                self._fail(error)
            else:
                self.side_effects.look_back()
        title = self.call.title
        self.call.refused += [f"{title}: forward changes {each}" for each in outside.found]
        return self.graph

    def _fail(self, error: Exception) -> None:
        """Note that the module's code raised `error`; raise InputError if it does so in torch."""
        path = self._failed or self.call.title
        reason = f"{path}: {type(error).__name__}: {error}{location_text(line_of_error(error))}"
        if self._fails_in_torch(error):
            raise InputError(reason) from error
        self.stopped, self.cause = reason, error

    def _fails_in_torch(self, error: Exception) -> bool:
        """Whether the network raises the same on meta tensors, without being traced."""
        if MapProxy.__name__ in str(error):
            return False
        inputs = [torch.empty_like(x, requires_grad=x.requires_grad) for x in self.inputs.values()]
        self.call.evaluating = True
        try:
            with torch.set_grad_enabled(self.call.graded):
                self.call.net(*inputs)
        except FOREIGN as other:
            return type(other) is type(error) and line_of_error(other) == line_of_error(error)
        finally:
            self.call.evaluating = False
        return False

    def placeholders(self) -> Iterator[fx.Proxy]:
        for name in self.inputs:
            proxy = self.create_proxy("placeholder", name, (), {})
            self.reads.map_node = self.reads.map_node or proxy.node
            yield proxy

    def create_proxy(
        self, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **options: Any
    ) -> Any:
        """The proxy of a new node. A module may return a tuple with it.

        Where torch returns an argument itself (`x.relu_()`, `x.contiguous()`), the result is the
        proxy of that argument, which stands for the new node from then on. What the tracer asks
        of tensors meanwhile is no call of the network.
        """
        make = super().create_proxy
        return self.call.evaluated(
            lambda: self._present(make(kind, target, args, kwargs, *rest, **options), args, kwargs)
        )

    def _present(self, proxy: fx.Proxy, args: Any, kwargs: Any) -> Any:
        """The proxy, that of the argument which the call has returned, or a tuple with it."""
        value = proxy.node.meta["value"]
        if not isinstance(value, Tensor):
            return proxy
        given = [each for each in (*args, *kwargs.values()) if isinstance(each, MapProxy)]
        same = next((each for each in given if each.node.meta["value"] is value), proxy)
        if not (is_stale(same.node) or cuts_gradient(proxy.node)):
            same.node = proxy.node
        return as_returned(proxy, same)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        proxy = MapProxy(node, self)
        self.call.proxies.append(weakref.ref(proxy))
        return proxy

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        path = module_qualified_name.removeprefix("net").removeprefix(".")
        return path in self.eager_paths or module_refusal(m) is not None

    def call_module(
        self,
        m: torch.nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if self.call.evaluating or threading.get_ident() != self._thread:
            return forward(*args, **kwargs)
        if m not in self.call.meta_copies.modules:
            return self._call_apart(m, forward, args, kwargs)
        if isinstance(m, LazyModuleMixin) and m.has_uninitialized_params():
            self._initialize(m, args, kwargs)
        self.call.running.append(m)
        try:
            if _reads_maps(args, kwargs) or m._backward_hooks or m._backward_pre_hooks:
                result = super().call_module(m, partial(_as_far_as_known, forward), args, kwargs)
            else:  # of parameters alone
                result = _as_far_as_known(forward, *args, **kwargs)
            if not is_plain_layer(m) or m is self.call.net:
                self._refuse_draws()
            return result
        except (TraceError, *FOREIGN):
            self._failed = self._failed or self.call.path_now()
            raise
        finally:
            self.call.running.pop()

    def _call_apart(
        self, m: torch.nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """Trace a module that is no submodule, as a slice of a Sequential, as its caller's part."""
        if any(True for _ in (*m.parameters(), *m.buffers())) and not self._is_made_of_layers(m):
            reason = (
                f"{type(m).__name__}, whose tensors are not the network's, as of a layer made in"
                " forward or in a plain list (register it, as in a ModuleList)"
            )
            raise RefusedError(self.call.refuse(reason))
        refusal = module_refusal(m)
        if refusal is not None:
            raise RefusedError(self.call.refuse(refusal))
        return forward(*args, **kwargs)

    def _is_made_of_layers(self, m: torch.nn.Module) -> bool:
        """Whether a module is a Sequential of the network's layers. `call.apart` refers to it."""
        self.call.apart.append(weakref.ref(m))
        is_sequential = type(m) is torch.nn.Sequential and is_plain_layer(m)
        return is_sequential and all(x in self.call.meta_copies.modules for x in m.children())

    def _refuse_draws(self) -> None:
        found = self._host_draws.found(self.call.module)
        self.call.refused += [f"{self.call.where()}: {reason}" for reason in found]

    def to_bool(self, obj: fx.Proxy) -> bool:
        return bool(self.decide(obj, "a condition"))

    def iter(self, obj: fx.Proxy) -> Iterator[fx.Proxy]:
        assert isinstance(obj, MapProxy)
        return (operator.getitem(obj, index) for index in range(len(obj)))

    def decide(self, proxy: fx.Proxy, what: str) -> int:
        """Refuse control flow by the value of a tensor, and return a number to go on with.

        The number is 1 the first time that a line asks, then 0. Loops end by it.
        """
        at = source_location()
        proxy.node.meta["kept"] = True
        proxy.node.meta["refusal"] = self.call.refusal(
            f"{torch_name(proxy.node)} as {what}, by which control flow or a shape would hang on"
            " the values of a tensor"
        )
        first = at not in self._decided
        self._decided.add(at)
        return int(first)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, fx.Proxy]) -> Any:
        """The attribute of a module, unchanged; `create_arg` names parameters."""
        return attr_val

    def create_arg(self, a: Any) -> Any:
        """Turn a tensor among the arguments of a call into a node that reads it by name."""
        if type(a).__module__ == "numpy" and getattr(a, "ndim", None) == 0:
            a = a.item()
        if not isinstance(a, Tensor):
            return super().create_arg(a)
        return self.reads.node_of(a)

    def create_node(
        self, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **options: Any
    ) -> fx.Node:
        """A node whose arguments are the present values of their tensors."""
        args, kwargs = map_arg((args, kwargs), self._read)
        node = super().create_node(kind, target, args, kwargs, *rest, **options)
        return self.records.fill(node)

    def _read(self, node: fx.Node) -> fx.Node:
        if not self.layout_guard.found and self.layout_guard.tells(node):
            self.layout_guard.found = source_location()
        return self.functionalizer.fresh(node)

    def _record(
        self, kind: str, target: Any, args: Any, kwargs: Any, value: Any, graded: bool = True
    ) -> fx.Node:
        """A node that no call of the user's makes; it may read a value from before a write."""
        node = super().create_node(kind, target, args, kwargs)
        with torch.set_grad_enabled(graded and self.call.graded):
            filled = self.records.fill(node, value, beside=True)
        filled.meta["parent"] = None
        return filled

    def _initialize(
        self, module: LazyModuleMixin, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Give a lazy layer the parameters that its first call would give it."""
        assert isinstance(module, torch.nn.Module)
        self._refuse_draws()
        values = tuple(arg.known for arg in args)
        named = {name: arg.known for name, arg in kwargs.items()}
        infer = partial(module._infer_parameters, module, values, named)
        with torch.no_grad():
            self.call.evaluated(partial(self.call.meta_copies.adopt, module, infer))
        self._host_draws = HostDraws()  # torch draws these parameters once, too


def _forward_of(module: torch.nn.Module) -> Callable[..., Any] | None:
    """The function that runs in the place of a module's forward; None for its own."""
    plain = (_BatchNorm.forward, torch.nn.SyncBatchNorm.forward)
    if isinstance(module, _BatchNorm) and type(module).forward in plain:
        return partial(
            normalize_batch, module
        )  # torch's forward computes with the value of a buffer
    if f"{type(module).__module__}.{type(module).__name__}" in BRANCH_DROPPERS:
        return partial(drop_branch, module)  # their forward draws by torch
    return None


def _reads_maps(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return any(isinstance(each, fx.Proxy) for each in tree_leaves((args, kwargs)))


def _as_far_as_known(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The result of `forward`, or the first proxy of unknown shape that stopped it."""
    try:
        return forward(*args, **kwargs)
    except UnknownShapeError as error:
        return error.proxy
