"""The fx tracer behind `trace`: it records every torch call and the op that the call stands for.

While a module's forward runs once over fx proxies, every proxy carries a tensor of the meta device.
So sizes are plain numbers to the module's own code, no data is touched, and torch's version
counters show what in-place operations write. Each node's `meta` holds what Aliases keeps there, and
`name` (the module's path, and the function's name in a module of the user's), `axes` (where its
dimensions are stored), `call` (the op), `refusal` (why there is none), `within` (the path of the
module that makes the call), `graded` (whether torch recorded gradients), `stops` (whether no
gradient goes back from it to what it reads), `kept` (whether the call counts though nothing reads
its result), `place` (how many calls were on the tape of those on no maps) and `at` (the line of the
call).
"""

import operator
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
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
from ..functional import counted_batch_norm, drop_branch, normalize_batch
from ..graph.network import channels_last_axes
from ..ops.decompositions import DECOMPOSITIONS
from ..ops.traced_op import UNNAMED, TracedOp, UnsupportedCallError
from ..ops.translate import (
    cuts_gradient,
    function_of,
    rearranges_in_place,
    result_axes,
    takes_apart,
    torch_name,
    translated,
    translator_of,
)
from .casts import Casts
from .diagnostics import FOREIGN, caller, instead, line_of, place, shown
from .eager_fallback import Effects, opaque_call
from .guards.inputs import Asked
from .guards.layouts import Layouts
from .modules import BRANCH_DROPPERS, LAYER_PACKAGES, module_refusal
from .proxy_attributes import InPlaceOperators, hide
from .python.outputs import taken_apart
from .python.outside_writes import OutsideChanges
from .python.patched_torch import Exchanged
from .python.random_draws import Draws
from .python.side_effects import RefusedError, SideEffects, has_effects, may_change_state
from .state.functionalize import Aliases, base_of, forgets, is_stale, parent_of, version_of
from .state.meta_copies import StandIns, empty_like
from .state.recorded_calls import NoFormulaError, RecordedCalls

FACTS = frozenset(  # functions of maps that their values on the meta device answer
    {
        *(torch.is_floating_point, torch.is_complex, torch.is_same_size, torch.is_inference),
        *(torch.is_signed, torch.is_conj, torch.is_neg, torch.numel),
    }
)


class UnknownShapeError(TraceError):
    """The network asked for the shape of `proxy`, which a refused call yields."""

    def __init__(self, proxy: "MapProxy") -> None:
        super().__init__(f"the shape of {proxy.node.meta['name']} is not known")
        self.proxy = proxy


@hide
class MapProxy(InPlaceOperators, Casts, fx.Proxy):
    """A proxy whose sizes are known numbers."""

    @classmethod
    def __torch_function__(
        cls, orig_method: Any, types: Any, args: tuple[Any, ...] | None = None, kwargs: Any = None
    ) -> Any:
        if orig_method in FACTS and not kwargs:
            return orig_method(*(getattr(each, "known", each) for each in args or ()))
        if orig_method in DECOMPOSITIONS:
            return DECOMPOSITIONS[orig_method](*(args or ()), **(kwargs or {}))
        return super().__torch_function__(orig_method, types, args, kwargs)

    def __abs__(self) -> Any:
        return self.abs()

    def addcmul(self, tensor1: Any, tensor2: Any, *, value: float = 1) -> Any:
        return torch.addcmul(self, tensor1, tensor2, value=value)  # type: ignore[call-overload]

    def lerp(self, end: Any, weight: Any) -> Any:
        return torch.lerp(self, end, weight)  # type: ignore[call-overload]

    @property
    def known(self) -> Tensor:
        """The tensor of the meta device."""
        value = self.node.meta["value"]
        if not isinstance(value, Tensor):
            self.node.meta["kept"] = True  # code that goes on after the error has lost this call
            raise UnknownShapeError(self)
        return value

    @property
    def shape(self) -> torch.Size:
        return self.known.shape

    @property
    def ndim(self) -> int:
        return self.known.dim()

    @property
    def dtype(self) -> torch.dtype:
        return self.known.dtype

    def dim(self) -> int:
        return self.known.dim()

    def size(self, dim: int | None = None) -> Any:
        return self.known.shape if dim is None else self.known.shape[dim]

    def numel(self) -> int:
        return self.known.numel()

    def __getitem__(self, index: Any) -> Any:
        parts = self.node.meta["value"]
        if isinstance(parts, (tuple, list)) and isinstance(index, slice):
            return tuple(self[place] for place in range(len(parts))[index])
        return super().__getitem__(index)  # type: ignore[misc]

    def __len__(self) -> int:
        parts = self.node.meta["value"]
        return len(parts if isinstance(parts, tuple) else self.known)

    def __int__(self) -> int:
        assert isinstance(self.tracer, MetaTracer)
        return self.tracer.decide(self, "a number")

    def __index__(self) -> int:
        return int(self)

    def __float__(self) -> float:
        return float(int(self))


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

    The submodules at the paths `opaque` are ops as they are, which run torch's own code. `graded`
    tells whether torch records gradients where the network does not say otherwise.
    """

    traced_func_name = "traced"

    def __init__(
        self,
        net: torch.nn.Module,
        inputs: Mapping[str, Tensor],
        opaque: frozenset[str] = frozenset(),
        *,
        graded: bool = True,
    ) -> None:
        super().__init__()
        self.graded = graded
        self.net = net
        self.device = _device_of(net)
        self.inputs = inputs
        self.opaque = opaque
        self.stopped: str | None = None
        self.cause: Exception | None = None
        self.fault: Exception | None = None  # an error in what makes ops of calls
        self.gather: Callable[[Sequence[Any]], Any] = operator.itemgetter(0)
        self.stand_ins = StandIns(net, _forward_of)
        self.twins = self.stand_ins.twins
        self.aliases = Aliases(self._record)
        self.layouts = Layouts()
        self.asked = Asked()
        self.side_effects = SideEffects(self)
        self.active: list[torch.nn.Module] = [net]
        self.failed: str | None = None
        self.decided: set[str] = set()
        self.proxies: list[weakref.ref[fx.Proxy]] = []
        self.evaluating = False
        self.effects: str | None = None
        self.draws = Draws()
        self.thread = threading.get_ident()  # others may call modules meanwhile

    def trace_net(self) -> fx.Graph:
        """The graph of one call, with meta twins in the place of parameters and buffers.

        Where the call could not be followed to its end, `stopped` says why. Raises InputError where
        torch itself would raise.
        """
        outside = OutsideChanges(self.net)
        with self.stand_ins, outside:
            try:
                with self.side_effects, Exchanged(self):
                    self.trace(Root(self.net, self))
            except RefusedError as error:
                self.stopped = str(error)
            except TraceError as error:
                self.stopped = self._refusal(str(error), self.failed)
            except FOREIGN as error:
                if error is self.fault:
                    raise
                self._fail(error)
            else:
                self.side_effects.look_back()
        name = type(self.net).__name__
        self.side_effects.refused += [f"{name}: forward changes {each}" for each in outside.found]
        return self.graph

    def _fail(self, error: Exception) -> None:
        """Note that the module's code raised `error`; raise InputError if it does so in torch."""
        path = self.failed or type(self.net).__name__
        reason = f"{path}: {type(error).__name__}: {error}{shown(line_of(error))}"
        if self._fails_in_torch(error):
            raise InputError(reason) from error
        self.stopped, self.cause = reason, error

    def _fails_in_torch(self, error: Exception) -> bool:
        """Whether the network raises the same on meta tensors, without being traced."""
        if MapProxy.__name__ in str(error):
            return False
        inputs = [torch.empty_like(x, requires_grad=x.requires_grad) for x in self.inputs.values()]
        self.evaluating = True
        try:
            with torch.set_grad_enabled(self.graded):
                self.net(*inputs)
        except FOREIGN as other:
            return type(other) is type(error) and line_of(other) == line_of(error)
        finally:
            self.evaluating = False
        return False

    def placeholders(self) -> Iterator[fx.Proxy]:
        return (self.create_proxy("placeholder", name, (), {}) for name in self.inputs)

    def create_proxy(
        self, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **options: Any
    ) -> fx.Proxy:
        """A proxy of a new node; the one given where torch gives back the tensor that it is given.

        As torch does of what it writes, and of what it need not change: `x.contiguous() is x`. Then
        the one given stands for the new node, which views what it stood for.
        """
        proxy = super().create_proxy(kind, target, args, kwargs, *rest, **options)
        value = proxy.node.meta["value"]
        if not isinstance(value, Tensor):
            return proxy
        given = [each for each in (*args, *kwargs.values()) if isinstance(each, MapProxy)]
        same = next((each for each in given if each.node.meta["value"] is value), proxy)
        if not (is_stale(same.node) or cuts_gradient(proxy.node)):
            same.node = proxy.node
        return same

    def proxy(self, node: fx.Node) -> fx.Proxy:
        proxy = MapProxy(node, self)
        self.proxies.append(weakref.ref(proxy))
        return proxy

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
        if self.evaluating or threading.get_ident() != self.thread:
            return forward(*args, **kwargs)
        if m not in self.stand_ins.modules:
            return self._call_apart(m, forward, args, kwargs)
        if isinstance(m, LazyModuleMixin) and m.has_uninitialized_params():
            self._initialize(m, args, kwargs)
        self.active.append(m)
        try:
            if _reads_maps(args, kwargs) or m._backward_hooks or m._backward_pre_hooks:
                result = super().call_module(m, partial(_as_far_as_known, forward), args, kwargs)
            else:  # of parameters alone
                result = _as_far_as_known(forward, *args, **kwargs)
            self._check_draws()
            return result
        except (TraceError, *FOREIGN):
            self.failed = self.failed or self.path_now()
            raise
        finally:
            self.active.pop()

    def _call_apart(
        self, m: torch.nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any
    ) -> Any:
        """The call of a module that the network has not registered, as part of its caller."""
        if any(True for _ in (*m.parameters(), *m.buffers())):
            reason = (
                f"{type(m).__name__}, whose tensors are not the network's, as of a layer made in"
                " forward or in a plain list (register it, as in a ModuleList)"
            )
            raise RefusedError(self.refuse(reason))
        refusal = module_refusal(m)
        if refusal is not None:
            raise RefusedError(self.refuse(refusal))
        return forward(*args, **kwargs)

    def _check_draws(self) -> None:
        """Refuse numbers that the running module has drawn."""
        where = self.path_now() or type(self.net).__name__
        found = self.draws.found(self.active[-1])
        self.side_effects.refused += [f"{where}: {reason}" for reason in found]

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
        proxy.node.meta["kept"] = True
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
        if type(a).__module__ == "numpy" and getattr(a, "ndim", None) == 0:
            a = a.item()
        if not isinstance(a, Tensor):
            return super().create_arg(a)
        if (viewed := self.evaluated(partial(self.stand_ins.viewed, a))) is not None:
            node = self.create_node("get_attr", viewed, (), {})
            node.meta["value"], node.meta["base"] = a, node.meta["value"]
            node.meta["axes"] = channels_last_axes(a.dim())
            return node
        if (name := self.stand_ins.names.get(id(a))) is not None:
            return self.create_node("get_attr", name, (), {})
        return self._read_of_other(a)

    def _read_of_other(self, a: Tensor) -> fx.Node:
        """The read of a tensor that is neither a parameter nor a buffer, but may be computed."""
        try:
            name, unknown = self.recorded.name_of(a), None
        except NoFormulaError as reason:
            name, unknown = None, str(reason)
        if name is None:
            self.twins.setdefault(f"{UNNAMED}{id(a)}", a.to("meta"))
        node = self.create_node("get_attr", name or f"{UNNAMED}{id(a)}", (), {})
        node.meta["computed"], node.meta["unknown"] = name is not None, unknown
        return node

    @property
    def recorded(self) -> RecordedCalls:
        """The calls that read no map."""
        return self.side_effects.recorded

    def evaluated(self, run: Callable[[], Any]) -> Any:
        """What `run` returns; its calls are no part of the network."""
        evaluating, self.evaluating = self.evaluating, True
        try:
            return run()
        finally:
            self.evaluating = evaluating

    def create_node(
        self, kind: str, target: Any, args: Any, kwargs: Any, *rest: Any, **options: Any
    ) -> fx.Node:
        """A node that reads what the tensors of its arguments hold now."""
        args, kwargs = map_arg((args, kwargs), self._read)
        node = super().create_node(kind, target, args, kwargs, *rest, **options)
        return self._filled(node)

    def _read(self, node: fx.Node) -> fx.Node:
        if not self.layouts.found and self.layouts.tells(node):
            self.layouts.found = place()
        return self.aliases.fresh(node)

    def _record(
        self, kind: str, target: Any, args: Any, kwargs: Any, value: Any, graded: bool = True
    ) -> fx.Node:
        """A node beside the user's, which may read what was there before a write."""
        node = super().create_node(kind, target, args, kwargs)
        with torch.set_grad_enabled(graded and self.graded):
            filled = self._filled(node, value, beside=True)
        filled.meta["parent"] = None
        return filled

    def _filled(self, node: fx.Node, value: Any = None, *, beside: bool = False) -> fx.Node:
        """The node with its `meta`; its value is as given, else what the call yields."""
        meta, sources = node.meta, node.all_input_nodes
        versions = [version_of(source.meta["value"]) for source in sources]
        meta["name"], meta["within"], meta["at"] = self._name(node), self.path_now(), caller()
        meta["call"] = meta["refusal"] = None
        meta["place"] = self.side_effects.tape.place
        meta["graded"], meta["kept"] = torch.is_grad_enabled(), has_effects(node)
        meta["value"] = self._value(node) if value is None else value
        meta["axes"] = channels_last_axes(_dims(meta["value"]))
        meta["view"], meta["parent"] = node, parent_of(node, meta["value"])
        meta["version"] = version_of(meta["value"])
        if takes_apart(node):  # the parts were there before what was written since
            meta["version"] = sources[0].meta["version"]
        meta["stops"] = not meta["graded"] or cuts_gradient(node)
        meta["shows"] = cuts_gradient(node) or not meta["graded"]
        meta["carries"] = self._carries(node)
        pairs = list(zip(sources, versions, strict=True))
        stale = next((s for s, v in pairs if v != s.meta["version"] and not beside), None)
        written = [s for s, v in pairs if v != version_of(s.meta["value"])]
        self._note_writes(node, written)
        try:
            self._check_writes(node)
            meta["call"] = call = self._counted(self._call(node, stale))
            if call is not None:
                meta["axes"] = result_axes(torch_name(node), call, tuple(meta["value"].shape))
                meta["kept"] |= self.side_effects.tracks(call)
            self.side_effects.check(node, [*filter(_is_of_no_map, written)])
            self._keep_gradient(node, _target(node, written))
        except UnsupportedCallError as reason:
            meta["refusal"] = self._refusal(f"{reason}{instead(str(reason))}")
            meta["kept"] |= may_change_state(node, self.active[-1]) or _may_write(node, written)
        except FOREIGN as error:
            self.fault = error
            raise
        return node

    def _carries(self, node: fx.Node) -> bool:
        """Whether a gradient flows back from a node's value."""
        if node.op in ("placeholder", "get_attr"):
            return bool(node.meta["value"].requires_grad)
        return not node.meta["stops"] and any(s.meta["carries"] for s in node.all_input_nodes)

    def _note_writes(self, node: fx.Node, written: Sequence[fx.Node]) -> None:
        """Note which maps a call has written, and by what they hold a node's value now."""
        self.layouts.note(node)
        self.asked.note(node)
        self.layouts.wrote(written)
        if torch_name(node) == "detach_":
            self.aliases.detach(node.all_input_nodes[0], node)
        target = _target(node, written)
        if target is None:
            for source in written:
                self.aliases.lose(source, node)
        elif target.op != "get_attr":
            self.aliases.wrote(node, target)

    def _check_writes(self, node: fx.Node) -> None:
        """Refuse writes to maps whose gradients would not be those of what they hold then."""
        carries = any(source.meta["carries"] for source in node.all_input_nodes)
        if node.kwargs.get("out") is not None and carries and node.meta["graded"]:
            raise UnsupportedCallError(f"{torch_name(node)} with out= of maps that have a gradient")
        if node.meta["graded"] and forgets(node):
            raise UnsupportedCallError(
                "copy_ over a whole map that has a gradient, of what is not made of it (use that)"
            )

    def _keep_gradient(self, node: fx.Node, target: fx.Node | None) -> None:
        """What a call without gradients has written keeps the gradient of what it wrote over."""
        if target is not None and target.meta["carries"] and not node.meta["graded"]:
            self.aliases.keep_gradient(node, target)

    def refuse(self, reason: str) -> str:
        """Note why the network cannot be had, at the line that runs; what is noted."""
        text = self._refusal(reason)
        self.side_effects.refused.append(text)
        return text

    def _refusal(self, reason: str, path: str | None = None) -> str:
        """The reason behind the running module's path and before the line that runs."""
        where = self.path_now() if path is None else path
        return f"{where or type(self.net).__name__}: {reason}{place()}"

    def _call(self, node: fx.Node, stale: fx.Node | None) -> TracedOp | None:
        """The op that a node stands for; None for what is not an op."""
        if stale is not None:
            raise UnsupportedCallError(
                f"{torch_name(node)} reads {stale.meta['name']} after an in-place operation, which"
                f" cannot be followed{self.aliases.line_of_write(stale)}"
            )
        if node.op in ("placeholder", "get_attr", "output") or takes_apart(node):
            return None
        unknown = [each for each in node.all_input_nodes if each.meta.get("unknown")]
        if unknown:
            raise UnsupportedCallError(f"{torch_name(node)} of {unknown[0].meta['unknown']}")
        if node.op == "call_module" and self.path_now() in self.opaque:
            return self._opaque_call(node)
        if node.op == "call_module":
            raise UnsupportedCallError(module_refusal(self.active[-1]) or "")
        translator = translator_of(node)
        if translator is None:
            raise UnsupportedCallError(torch_name(node))
        if any(_is_plain(each.meta["value"]) for each in (node, *node.all_input_nodes)):
            raise UnsupportedCallError(f"{torch_name(node)} of a number that a call on maps yields")
        return None if node.meta["value"] is None else self._translated(node, translator)

    def _translated(
        self, node: fx.Node, translator: Callable[..., TracedOp | None]
    ) -> TracedOp | None:
        """The op of a supported call.

        Views of parameters count as computed where it does not take them as they are.
        """
        try:
            return translated(node, translator)
        except UnsupportedCallError:
            views = [each for each in node.all_input_nodes if "base" in each.meta]
            if not views or not all(map(self.recorded.computes, views)):
                raise
            return translated(node, translator)

    def _counted(self, call: TracedOp | None) -> TracedOp | None:
        """A normalization's call with the counter of batches that the module increased itself."""
        name = self.side_effects.counter_of(call) if call is not None else None
        if call is None or name is None:
            return call
        counter = self.create_node("get_attr", name, (), {})
        return replace(call, state=(*call.state[:2], counter))

    def _opaque_call(self, node: fx.Node) -> TracedOp:
        """The op of a submodule that runs as it is: what it reads, its parameters and itself."""
        module = self.active[-1]
        names = dict(module.named_parameters())
        twin_names = (self.stand_ins.names[id(p)] for p in names.values())
        params = (self.create_node("get_attr", name, (), {}) for name in twin_names)
        attrs = {"module": module, "names": tuple(names)}
        return opaque_call(node, tuple(params), attrs, self.effects)

    def _value(self, node: fx.Node) -> Any:
        """What a node yields on the meta device; None where that is unknown."""
        if node.op == "output":
            return None
        if node.op == "placeholder":
            return self.inputs[str(node.target)]
        if node.op == "get_attr":
            name = str(node.target)
            return self.twins[name] if name in self.twins else self.recorded.values[name]
        if any(source.meta["value"] is None for source in node.all_input_nodes):
            return None
        args, kwargs = map_arg((node.args, node.kwargs), lambda source: source.meta["value"])
        if rearranges_in_place(node):
            return None
        self.evaluating = True
        try:
            with torch.inference_mode(False), torch.no_grad():
                return self._evaluated(node, args, kwargs)
        except FOREIGN as error:
            if translator_of(node) is not None:
                shapes = [tuple(source.meta["value"].shape) for source in node.all_input_nodes]
                raise InputError(
                    f"{node.meta['name']} of shapes {shapes}: {error}{place()}"
                ) from error
            return None
        finally:
            self.evaluating = False

    def _evaluated(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        function = function_of(node, self.root)
        if node.op == "call_module":
            return self._run_module(function, args, kwargs)
        if _is_batch_norm(function, *args, **kwargs):
            return empty_like(args[0], args[0].dtype)
        return function(*args, **kwargs)

    def _run_module(self, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What a refused or opaque module yields, its effects noted."""
        with Effects(self.active[-1]) as effects:
            value = forward(*args, **kwargs)
        self.effects = effects.found()
        return value

    def path_now(self) -> str:
        """The running module's path below the traced one."""
        return self.path_of_module(self.active[-1]).removeprefix("net").removeprefix(".")

    def _name(self, node: fx.Node) -> str:
        """A layer's path; for a call in a module of the user's, path and function."""
        if node.op in ("placeholder", "get_attr"):
            return str(node.target)
        path, function = self.path_now(), torch_name(node).rstrip("_")
        if node.op == "call_module":
            return path or type(self.net).__name__
        if path and type(self.active[-1]).__module__.startswith(LAYER_PACKAGES):
            return path
        return f"{path}.{function}" if path else function

    def _initialize(
        self, module: LazyModuleMixin, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Gives a lazy layer the parameters that its first call would give it."""
        assert isinstance(module, torch.nn.Module)
        self._check_draws()
        values = tuple(arg.known for arg in args)
        named = {name: arg.known for name, arg in kwargs.items()}
        self.evaluating = True  # this is no part of the network's course
        try:
            with torch.no_grad():
                infer = partial(module._infer_parameters, module, values, named)
                self.stand_ins.adopt(module, infer)
        finally:
            self.evaluating = False
        self.draws = Draws()  # the parameters are drawn once in torch, too


def _device_of(net: torch.nn.Module) -> torch.device:
    """Where a network lies; where it has no tensors, torch's default."""
    tensors = (*net.parameters(), *net.buffers())
    return tensors[0].device if tensors else torch.get_default_device()


def _forward_of(module: torch.nn.Module) -> Callable[..., Any] | None:
    """What runs for a module's forward while it is traced; None for its own."""
    if isinstance(module, _BatchNorm) and type(module).forward is _BatchNorm.forward:
        return partial(normalize_batch, module)  # torch's computes with a buffer's value
    if f"{type(module).__module__}.{type(module).__name__}" in BRANCH_DROPPERS:
        return partial(drop_branch, module)  # theirs draw by torch
    return None


def _may_write(node: fx.Node, written: Sequence[fx.Node]) -> bool:
    """Whether a refused call writes, or by its name may write, a tensor that comes from no map."""
    in_place = torch_name(node).endswith("_") and node.args
    targets = [*written, *(node.args[:1] if in_place else ()), node.kwargs.get("out")]
    return any(isinstance(each, fx.Node) and _is_of_no_map(each) for each in targets)


def _is_of_no_map(node: fx.Node) -> bool:
    """Whether a node's tensor is, or is a view of, one that comes from no map."""
    return base_of(node).op == "get_attr"


def _target(node: fx.Node, written: Sequence[fx.Node]) -> fx.Node | None:
    """The node whose tensor a call writes over with its result; None where there is none."""
    value = node.meta["value"]
    return next((source for source in written if source.meta["value"] is value), None)


def _is_plain(value: Any) -> bool:
    """Whether a value is known, and neither a tensor nor several."""
    return value is not None and not isinstance(value, (Tensor, tuple, list))


def _dims(value: Any) -> int:
    return value.dim() if isinstance(value, Tensor) else 0


def _is_batch_norm(function: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
    """Whether a call normalizes a batch and its sizes fit.

    Torch takes 2 ms for one on the meta device, and a network may have thousands.
    """
    if function not in (torch.nn.functional.batch_norm, counted_batch_norm) or not args:
        return False
    x, *rest = (arg for arg in (*args, *kwargs.values()) if isinstance(arg, Tensor))
    fits = all(tensor.shape == x.shape[1:2] for tensor in rest if tensor.dim() > 0)
    return fits and x.numel() > x.shape[1]  # with one value a channel torch may refuse


def _reads_maps(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return any(isinstance(each, fx.Proxy) for each in tree_leaves((args, kwargs)))


def _as_far_as_known(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What `forward` returns, or what it asks the unknown shape of: more may be refused after."""
    try:
        return forward(*args, **kwargs)
    except UnknownShapeError as error:
        return error.proxy
