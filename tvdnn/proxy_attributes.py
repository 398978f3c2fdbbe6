"""What proxies have of a tensor's attributes beside operations: in-place operators, plain facts."""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from .aliases import storage_of

FACTS = frozenset(  # attributes and methods that a meta tensor answers as the tensor would
    {
        *("device", "layout", "is_sparse", "is_quantized", "is_nested", "is_complex"),
        *("is_floating_point", "is_signed", "element_size", "itemsize", "nbytes", "stride"),
        *("storage_offset", "is_contiguous", "nelement", "ndimension", "is_conj", "is_neg"),
    }
)
FACT_CALLS = frozenset({torch.numel, torch.is_floating_point, torch.is_complex, torch.is_conj})


def _in_place(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def operate(self: fx.Proxy, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", operation, (self, other), {})

    return operate


class InPlaceOperators:
    """The operators that write over their first operand, and what tells of gradients."""

    node: fx.Node
    tracer: Any

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

    def __getattr__(self, name: str) -> Any:
        value = self.node.meta["value"] if name in FACTS else None
        if isinstance(value, Tensor):
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
        return self.detach()

    @property
    def requires_grad(self) -> bool:
        return bool(self.tracer.aliases.fresh(self.node).meta["carries"])

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        """As torch's: a map that depends on parameters keeps its gradient."""
        given = self.tracer.aliases.fresh(self.node).op == "placeholder"
        if given and requires_grad != self.requires_grad:  # which the caller would see
            return self.tracer.create_proxy("call_method", "requires_grad_", (self,), {})
        if self.requires_grad and not requires_grad:
            raise RuntimeError("requires_grad_(False) of a map that is no leaf")
        return self

    def register_hook(self, hook: object) -> Any:
        """Recorded without the function, to be refused."""
        return self.tracer.create_proxy("call_method", "register_hook", (self,), {})

    @property
    def grad(self) -> None:
        """None, as of every map that is no leaf; retain_grad is refused."""
        return

    @property
    def grad_fn(self) -> Any:
        """Recorded, to be refused where it is read; None where torch has none."""
        return None if self.is_leaf else fx.proxy.Attribute(self, "grad_fn")  # type: ignore[arg-type]

    @property
    def is_leaf(self) -> bool:
        return self.node.op == "placeholder" or not self.requires_grad

    @property
    def is_cuda(self) -> bool:
        tensors = (*self.tracer.net.parameters(), *self.tracer.net.buffers())
        return any(tensor.is_cuda for tensor in tensors)


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
