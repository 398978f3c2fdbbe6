"""Attributes of a tensor that a proxy answers itself, and in-place operators."""

import operator
import sys
from collections.abc import Callable
from typing import Any

from torch import Tensor, device, fx

from .python.patched_builtins import asks_of_proxies, reads_class
from .state.functionalize import storage_of

FACTS = frozenset(  # attributes and methods that a meta tensor answers as any tensor
    {
        *("layout", "is_sparse", "is_quantized", "is_nested", "is_complex"),
        *("is_floating_point", "is_signed", "element_size", "itemsize", "nbytes", "stride"),
        *("storage_offset", "is_contiguous", "nelement", "ndimension", "is_conj", "is_neg"),
        *("names", "has_names", "is_inference", "is_mkldnn", "_version", "_is_view"),
    }
)


def _in_place(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def operate(self: fx.Proxy, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", operation, (self, other), {})

    return operate


class InPlaceOperators:
    """Operators that write over their first operand, and attributes that tell of gradients."""

    node: fx.Node
    tracer: Any
    __hash__ = fx.Proxy.__hash__

    __iadd__ = _in_place(operator.iadd)
    __isub__ = _in_place(operator.isub)
    __imul__ = _in_place(operator.imul)
    __itruediv__ = _in_place(operator.itruediv)
    __ifloordiv__ = _in_place(operator.ifloordiv)
    __imod__ = _in_place(operator.imod)
    __ipow__ = _in_place(operator.ipow)
    __iand__ = _in_place(operator.iand)
    __ior__ = _in_place(operator.ior)
    __ixor__ = _in_place(operator.ixor)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The tensor's class where the network's code asks for it."""
        value = self.node.meta["value"]
        if isinstance(value, Tensor) and reads_class(sys._getframe(1)):
            return value.__class__
        return super().__class__

    def __eq__(self, other: object) -> Any:
        return self._compared(operator.eq, other)

    def __ne__(self, other: object) -> Any:
        return self._compared(operator.ne, other)

    def _compared(self, function: Callable[[Any, Any], Any], other: object) -> Any:
        if not isinstance(other, (fx.Proxy, Tensor, bool, int, float, complex)):
            return NotImplemented  # as torch: nothing else equals a map
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("'Tensor' object is not callable")

    def __repr__(self) -> str:
        return repr(self.node.meta["value"])

    def __format__(self, spec: str) -> str:
        if spec and self.ndim == 0:
            return format(self.tracer.decide(self, "a text"), spec)
        return format(self.node.meta["value"], spec)

    def __copy__(self) -> Any:
        """Record a refused call: torch makes a leaf of the same storage without a gradient."""
        return self._cut_off("copy.copy")

    def __deepcopy__(self, memo: object) -> Any:
        if not self.is_leaf:
            raise RuntimeError("only tensors made by the user can be copied deeply")
        if self.requires_grad:  # refused: torch makes a leaf that requires a gradient
            return self._cut_off("copy.deepcopy")
        return self.detach().clone()

    def _cut_off(self, name: str) -> Any:
        proxy = self.tracer.create_proxy("call_method", name, (self,), {})
        proxy.node.meta["kept"] = True
        return proxy

    def __getattr__(self, name: str) -> Any:
        parts = self.node.meta["value"]
        named = getattr(type(parts), "__match_args__", ()) if isinstance(parts, tuple) else ()
        if name in named:  # as the values of a maximum
            return self[named.index(name)]  # type: ignore[index]
        value = parts if name in FACTS else None
        if isinstance(value, Tensor):
            self.tracer.input_guard.note_question(self.node, name)
            return getattr(value, name)
        if not hasattr(Tensor, name):
            raise AttributeError(f"'Tensor' object has no attribute '{name}'")
        return super().__getattr__(name)  # type: ignore[misc]

    def __setitem__(self, index: Any, new: Any) -> None:
        part = self[index]  # type: ignore[index]
        if not _is_view(part.node, self.node):  # as of a mask, which copies
            self.tracer.create_proxy("call_function", operator.setitem, (self, index, new), {})
        elif isinstance(new, fx.Proxy) and _is_part(new.node, part.node):
            return  # as at the end of `maps[index] += other`
        elif isinstance(new, (fx.Proxy, Tensor)):
            part.copy_(new)
        else:
            part.fill_(new)

    @property
    def data(self) -> Any:
        """The detached map. Torch does not count writes through it."""
        found = self.detach()
        found.node.meta["shows"] = False
        return found

    @property
    def keys(self) -> Any:
        """A tensor has no keys: a network's code tells tensors from dicts by them."""
        raise AttributeError("'Tensor' object has no attribute 'keys'")

    @property
    def requires_grad(self) -> bool:
        if not asks_of_proxies(sys._getframe(1)):
            self.tracer.input_guard.note_question(self.node, "requires_grad")
        return bool(self.tracer.functionalizer.fresh(self.node).meta["carries"])

    @requires_grad.setter
    def requires_grad(self, requires_grad: bool) -> None:
        node = self.tracer.functionalizer.fresh(self.node)
        if node.op != "placeholder" and node.meta["carries"]:
            raise RuntimeError("you can only change requires_grad flags of leaf variables.")
        self.requires_grad_(requires_grad)

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        """As torch: a map that depends on parameters keeps its gradient."""
        given = self.tracer.functionalizer.fresh(self.node).op == "placeholder"
        if given and requires_grad != self.requires_grad:  # which the caller would see
            return self.tracer.create_proxy("call_method", "requires_grad_", (self,), {})
        if self.requires_grad and not requires_grad:
            raise RuntimeError("requires_grad_(False) of a map that is no leaf")
        return self

    def register_hook(self, hook: object) -> Any:
        """Record a refused call, without the hook."""
        return self.tracer.create_proxy("call_method", "register_hook", (self,), {})

    @property
    def grad(self) -> None:
        """None, as for every map that is no leaf; retain_grad is refused."""
        self.tracer.input_guard.note_question(self.node, "grad")

    @property
    def grad_fn(self) -> Any:
        """None where torch has none; else an attribute that is refused when it is read."""
        self.tracer.input_guard.note_question(self.node, "grad_fn")
        return None if self.is_leaf else _Unknown(self, "grad_fn")  # type: ignore[arg-type]

    @property
    def _base(self) -> None:
        """None; refused where torch has a base."""
        self.tracer.input_guard.note_question(self.node, "_base")
        if self.node.meta["value"]._base is not None:
            self.tracer.call.refuse("_base")

    @property
    def is_leaf(self) -> bool:
        self.tracer.input_guard.note_question(self.node, "is_leaf")
        return self._is_input() or not self.requires_grad

    def _is_input(self) -> bool:
        """Whether the map is an input itself, as after .contiguous() of a contiguous input."""
        value = self.node.meta["value"]
        inputs = (each for each in self.node.graph.nodes if each.op == "placeholder")
        if not any(each.meta["value"] is value for each in inputs):
            return False
        if self.node.op != "placeholder":
            self.tracer.input_guard.note_question(self.node, "stride")
        return True

    @property
    def device(self) -> device:
        """The device of the network."""
        found: device = self.tracer.call.device
        return found

    @property
    def is_cuda(self) -> bool:
        return bool(self.tracer.call.device.type == "cuda")

    @property
    def is_cpu(self) -> bool:
        return bool(self.tracer.call.device.type == "cpu")

    @property
    def is_meta(self) -> bool:
        return bool(self.tracer.call.device.type == "meta")

    def is_same_size(self, other: Any) -> bool:
        return bool(self.shape == other.shape)

    def get_device(self) -> int:
        index = self.tracer.call.device.index
        return (0 if index is None else index) if self.is_cuda else -1


class Hidden:
    """An attribute of proxies that tensors do not have: only torch and tvdnn see it.

    The network's own code may give its maps an attribute of the same name.
    """

    def __init__(self, name: str, found: Any = None) -> None:
        self._name, self._found = name, found

    def __get__(self, proxy: Any, kind: Any = None) -> Any:
        inner = asks_of_proxies(sys._getframe(1))
        if inner and self._found is not None:
            return self._found.__get__(proxy, kind)
        held = {} if proxy is None else proxy.__dict__
        if (name := self._key(inner)) not in held:
            raise AttributeError(f"'Tensor' object has no attribute '{self._name}'")
        return held[name]

    def __set__(self, proxy: Any, value: Any) -> None:
        proxy.__dict__[self._key(asks_of_proxies(sys._getframe(1)))] = value

    def _key(self, inner: bool) -> str:
        return self._name if inner else f"{self._name} set in forward"


def hide(kind: type[fx.Proxy]) -> type[Any]:
    """Hide the attributes of a proxy class that tensors do not have, except Python's own."""
    names = [name for name in dir(kind) if name not in dir(Tensor) and not name.startswith("__")]
    for name in ("node", "tracer", *(each for each in names if each != "keys")):
        setattr(kind, name, Hidden(name, getattr(kind, name, None)))
    return kind


class _Unknown(fx.proxy.Attribute):
    """An attribute whose value is not known: reading it is refused."""

    @property
    def node(self) -> fx.Node:  # type: ignore[override]
        if self._node is None:
            tracer: Any = self.tracer
            tracer.call.refuse(self.attr)
        node: fx.Node = super().node
        return node


def _is_view(node: fx.Node, other: fx.Node) -> bool:
    """Whether the values of two nodes share a storage."""
    tensors = node.meta["value"], other.meta["value"]
    if not all(isinstance(each, Tensor) for each in tensors):
        return False
    return storage_of(tensors[0]) == storage_of(tensors[1])


def _is_part(node: fx.Node, part: fx.Node) -> bool:
    """Whether two nodes' tensors are the same elements of one storage."""
    if not _is_view(node, part):
        return False
    one, other = (
        (value.storage_offset(), value.shape, value.stride())
        for value in (node.meta["value"], part.meta["value"])
    )
    return bool(one == other)
