"""The fx tracer behind `trace`: it records every torch call and the op that the call stands for.

While a module's forward runs once over fx proxies, every proxy carries a tensor of the meta device.
So sizes are plain numbers to the module's own code, no data is touched, and torch's version
counters show a read of a value that an in-place operation has renamed. Each node's `meta` holds
`name` (the module's path, and the function's name in a module of the user's), `value` (the meta
tensor), `version` (of it, when made), `axes` (where its dimensions are stored), `call` (the op),
`refusal` (why there is none), `within` (the path of the module that makes the call) and `decides`
(whether the network's course hangs on its values).
"""

import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import map_arg
from torch.fx.proxy import TraceError
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy

from .calls.batch_norm import counted_batch_norm
from .calls.call import Call, UnsupportedCallError, result_axes
from .calls.decompositions import DECOMPOSITIONS
from .calls.translation import (
    UNNAMED,
    function_of,
    stale_source,
    takes_apart,
    torch_name,
    translated,
    translator_of,
)
from .errors import InputError
from .graph.network import channels_last_axes
from .nn.batch_norm import normalize_batch
from .nn.dropout import drop_branch
from .opaque_calls import Effects, opaque_call
from .refusals import instead, place
from .traced_modules import BRANCH_DROPPERS, LAYER_PACKAGES, module_refusal


class UnknownShapeError(TraceError):
    """The network asked for the shape of `proxy`, which a refused call yields."""

    def __init__(self, proxy: "MapProxy") -> None:
        super().__init__(f"the shape of {proxy.node.meta['name']} is not known")
        self.proxy = proxy


class MapProxy(fx.Proxy):
    """A proxy whose sizes are known numbers."""

    @classmethod
    def __torch_function__(
        cls, orig_method: Any, types: Any, args: tuple[Any, ...] | None = None, kwargs: Any = None
    ) -> Any:
        if orig_method in DECOMPOSITIONS:
            return DECOMPOSITIONS[orig_method](*(args or ()), **(kwargs or {}))
        return super().__torch_function__(orig_method, types, args, kwargs)

    def __abs__(self) -> Any:
        return self.abs()

    @property
    def value(self) -> Tensor:
        value = self.node.meta["value"]
        if not isinstance(value, Tensor):
            raise UnknownShapeError(self)
        return value

    @property
    def shape(self) -> torch.Size:
        return self.value.shape

    @property
    def ndim(self) -> int:
        return self.value.dim()

    @property
    def dtype(self) -> torch.dtype:
        return self.value.dtype

    def dim(self) -> int:
        return self.value.dim()

    def size(self, dim: int | None = None) -> Any:
        return self.value.shape if dim is None else self.value.shape[dim]

    def numel(self) -> int:
        return self.value.numel()

    def __getitem__(self, index: Any) -> Any:
        parts = self.node.meta["value"]
        if isinstance(parts, (tuple, list)) and isinstance(index, slice):
            return tuple(self[place] for place in range(len(parts))[index])
        return super().__getitem__(index)  # type: ignore[misc]

    def __len__(self) -> int:
        parts = self.node.meta["value"]
        return len(parts if isinstance(parts, tuple) else self.value)

    def __int__(self) -> int:
        assert isinstance(self.tracer, MetaTracer)
        return self.tracer.decide(self, "a number")

    def __index__(self) -> int:
        return int(self)

    def __float__(self) -> float:
        return float(int(self))


class Root(torch.nn.Module):
    """A module that traces the network inside it when called."""

    def __init__(self, net: torch.nn.Module, tracer: "MetaTracer") -> None:
        super().__init__()
        self.net = net
        self.tracer = tracer

    def forward(self) -> fx.Graph:
        return self.tracer.trace(self)

    def traced(self) -> Any:
        self.tracer.gather, outputs = _taken_apart(self.net(*self.tracer.placeholders()))
        return outputs


def _taken_apart(outputs: Any) -> tuple[Callable[[Sequence[Any]], Any], Any]:
    """What makes of its parts what a module returns, and these parts."""
    if isinstance(outputs, Mapping):
        return partial(_named, tuple(outputs)), tuple(outputs.values())
    if isinstance(outputs, tuple) and hasattr(outputs, "_make"):
        return type(outputs)._make, tuple(outputs)
    return (tuple if isinstance(outputs, (tuple, list)) else operator.itemgetter(0)), outputs


def _named(names: tuple[str, ...], parts: Sequence[Any]) -> dict[str, Any]:
    return dict(zip(names, parts, strict=True))


class MetaTracer(fx.Tracer):
    """Traces one call of `net`; `inputs` are meta tensors by the names of the placeholders.

    The submodules at the paths `opaque` are ops as they are, which run torch's own code.
    """

    traced_func_name = "traced"

    def __init__(
        self,
        net: torch.nn.Module,
        inputs: Mapping[str, Tensor],
        opaque: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__()
        self.net = net
        self.inputs = inputs
        self.opaque = opaque
        self.stopped: str | None = None
        self.gather: Callable[[Sequence[Any]], Any] = operator.itemgetter(0)
        self.twins: dict[str, Tensor] = {}
        self.twin_names: dict[int, str] = {}
        self.active: list[torch.nn.Module] = [net]
        self.decided: set[str] = set()
        self.evaluating = False
        self.effects: str | None = None

    def trace_net(self) -> fx.Graph:
        """The graph of one call, with meta twins in the place of parameters and buffers.

        Where the call could not be followed to its end, `stopped` says why.
        """
        self._add_twins(self.net, prefix="")
        state = {f"net.{name}": twin for name, twin in self.twins.items()}
        try:
            torch.func.functional_call(Root(self.net, self), state, ())
        except TraceError as error:
            self.stopped = self._refusal(str(error))
        return self.graph

    def placeholders(self) -> Iterator[fx.Proxy]:
        return (self.create_proxy("placeholder", name, (), {}) for name in self.inputs)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return MapProxy(node, self)

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        path = module_qualified_name.removeprefix("net").removeprefix(".")
        return path in self.opaque or module_refusal(m) is not None

    def call_module(
        self,
        m: torch.nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if self.evaluating:
            return forward(*args, **kwargs)
        if isinstance(m, LazyModuleMixin) and m.has_uninitialized_params():
            self._initialize(m, args)
        if isinstance(m, _BatchNorm) and type(m).forward is _BatchNorm.forward:
            forward = partial(normalize_batch, m)  # torch's computes with a buffer's value
        if f"{type(m).__module__}.{type(m).__name__}" in BRANCH_DROPPERS:
            forward = partial(drop_branch, m)  # theirs draw by torch
        self.active.append(m)
        result = super().call_module(m, partial(_as_far_as_known, forward), args, kwargs)
        self.active.pop()
        return result

    def to_bool(self, obj: fx.Proxy) -> bool:
        return bool(self.decide(obj, "a condition"))

    def iter(self, obj: fx.Proxy) -> Iterator[fx.Proxy]:
        assert isinstance(obj, MapProxy)
        return (operator.getitem(obj, index) for index in range(len(obj)))

    def decide(self, proxy: fx.Proxy, what: str) -> int:
        """An answer where the network's course hangs on a tensor, which is refused.

        It is 1 the first time that a line asks, then 0, so that loops end.
        """
        at = place()
        proxy.node.meta["decides"] = True
        proxy.node.meta["refusal"] = self._refusal(
            f"{torch_name(proxy.node)} as {what}, by which control flow or a shape would hang on"
            " the values of a tensor"
        )
        first = at not in self.decided
        self.decided.add(at)
        return int(first)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, fx.Proxy]) -> Any:
        """A module's attribute as it is; `create_arg` names parameters where a call takes them."""
        return attr_val

    def create_arg(self, a: Any) -> Any:
        """Parameters become reads by name; so do other tensors, which no op accepts."""
        if not isinstance(a, Tensor):
            return super().create_arg(a)
        name = self.twin_names.get(id(a), f"{UNNAMED}{id(a)}")
        self.twins.setdefault(name, a.to("meta"))
        return self.create_node("get_attr", name, (), {})

    def create_node(
        self, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **options: Any
    ) -> fx.Node:
        node = super().create_node(kind, target, args, kwargs, *rest, **options)
        node.meta["name"] = self._name(node)
        stale = stale_source(node)  # asked before the call itself moves the version on
        node.meta["value"] = value = self._value(node)
        node.meta["version"] = value._version if isinstance(value, Tensor) else 0
        node.meta["call"] = node.meta["refusal"] = None
        node.meta["decides"], node.meta["within"] = False, self._path()
        node.meta["axes"] = channels_last_axes(value.dim() if isinstance(value, Tensor) else 0)
        try:
            node.meta["call"] = call = self._call(node, stale)
            if call is not None:
                node.meta["axes"] = result_axes(torch_name(node), call, tuple(value.shape))
        except UnsupportedCallError as reason:
            node.meta["refusal"] = self._refusal(f"{reason}{instead(str(reason))}")
        return node

    def _refusal(self, reason: str) -> str:
        """The reason behind the running module's path and before the line that runs."""
        return f"{self._path() or type(self.net).__name__}: {reason}{place()}"

    def _call(self, node: fx.Node, stale: fx.Node | None) -> Call | None:
        """The op that a node stands for; None for what is not an op."""
        if stale is not None:
            raise UnsupportedCallError(
                f"{torch_name(node)} reads {stale.meta['name']} after an in-place operation"
                " renamed it (read the operation's result)"
            )
        if node.op in ("placeholder", "get_attr", "output") or takes_apart(node):
            return None
        if node.op == "call_module" and self._path() in self.opaque:
            return self._opaque_call(node)
        if node.op == "call_module":
            raise UnsupportedCallError(module_refusal(self.active[-1]) or "")
        translator = translator_of(node)
        if translator is None:
            raise UnsupportedCallError(torch_name(node))
        return None if node.meta["value"] is None else translated(node, translator)

    def _opaque_call(self, node: fx.Node) -> Call:
        """The op of a submodule that runs as it is: what it reads, its parameters and itself."""
        module = self.active[-1]
        names = dict(module.named_parameters())
        params = (
            self.create_node("get_attr", self.twin_names[id(p)], (), {}) for p in names.values()
        )
        attrs = {"module": module, "names": tuple(names)}
        return opaque_call(node, tuple(params), attrs, self.effects)

    def _value(self, node: fx.Node) -> Any:
        """What a node yields on the meta device; None where that is unknown."""
        if node.op == "output":
            return None
        if node.op in ("placeholder", "get_attr"):
            return (self.inputs if node.op == "placeholder" else self.twins)[str(node.target)]
        if any(source.meta["value"] is None for source in node.all_input_nodes):
            return None
        args, kwargs = map_arg((node.args, node.kwargs), lambda source: source.meta["value"])
        self.evaluating = True
        try:
            function = function_of(node, self.root)
            if node.op == "call_module":
                return self._run_module(function, args, kwargs)
            if _is_batch_norm(function, *args, **kwargs):
                return _like(args[0], args[0].dtype)  # type: ignore[union-attr, arg-type]
            return function(*args, **kwargs)
        except (RuntimeError, TypeError, ValueError, AttributeError, NotImplementedError) as error:
            if translator_of(node) is not None:
                shapes = [tuple(source.meta["value"].shape) for source in node.all_input_nodes]
                raise InputError(f"{node.meta['name']} of shapes {shapes}: {error}") from error
            return None
        finally:
            self.evaluating = False

    def _run_module(self, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What a refused or opaque module yields, its effects noted."""
        with Effects(self.active[-1]) as effects:
            value = forward(*args, **kwargs)
        self.effects = effects.found()
        return value

    def _path(self) -> str:
        """The running module's path below the traced one."""
        return self.path_of_module(self.active[-1]).removeprefix("net").removeprefix(".")

    def _name(self, node: fx.Node) -> str:
        """A layer's path; for a call in a module of the user's, path and function."""
        if node.op in ("placeholder", "get_attr"):
            return str(node.target)
        path, function = self._path(), torch_name(node).rstrip("_")
        if node.op == "call_module":
            return path or type(self.net).__name__
        if path and type(self.active[-1]).__module__.startswith(LAYER_PACKAGES):
            return path
        return f"{path}.{function}" if path else function

    def _add_twins(self, module: torch.nn.Module, *, prefix: str) -> None:
        """Makes a meta tensor, float32 for floats, for each parameter and buffer with a shape."""
        for name, tensor in itertools.chain(module.named_parameters(), module.named_buffers()):
            if is_lazy(tensor):
                continue
            dtype = torch.float32 if tensor.is_floating_point() else tensor.dtype
            twin = _like(tensor, dtype)
            if isinstance(tensor, torch.nn.Parameter):
                twin = torch.nn.Parameter(twin, requires_grad=tensor.requires_grad)
            self.twins[prefix + name] = twin
            self.twin_names[id(twin)] = self.twin_names[id(tensor)] = prefix + name

    def _initialize(self, module: LazyModuleMixin, args: tuple[Any, ...]) -> None:
        """Gives a lazy layer the parameters that its first call would give it."""
        assert isinstance(module, torch.nn.Module)
        module._infer_parameters(module, tuple(arg.value for arg in args))
        path = self.path_of_module(module).removeprefix("net").removeprefix(".")
        self._add_twins(module, prefix=f"{path}." if path else "")


def _is_batch_norm(function: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
    """Whether a call normalizes a batch and its sizes fit.

    Torch takes 2 ms for one on the meta device, and a network may have thousands.
    """
    if function not in (torch.nn.functional.batch_norm, counted_batch_norm) or not args:
        return False
    x, *rest = (arg for arg in (*args, *kwargs.values()) if isinstance(arg, Tensor))
    fits = all(tensor.shape == x.shape[1:2] for tensor in rest if tensor.dim() > 0)
    return fits and x.numel() > x.shape[1]  # with one value a channel torch may refuse


def _like(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """A meta tensor laid out as another; torch.empty_like takes 0.1 ms where that one is meta."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device="meta")


def _as_far_as_known(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What `forward` returns, or what it asks the unknown shape of: more may be refused after."""
    try:
        return forward(*args, **kwargs)
    except UnknownShapeError as error:
        return error.proxy
