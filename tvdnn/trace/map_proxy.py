"""Proxies of maps, which answer for sizes and types as tensors of the meta device."""

from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.proxy import TraceError

from ..ops.decompositions import DECOMPOSITIONS
from .casts import LIKE, Casts
from .concatenations import CONCATENATIONS, concatenated
from .proxy_attributes import InPlaceOperators, hide
from .stacks import FOLDS, folded

FACTS = frozenset(  # functions that the meta tensor of a map answers
    {
        *(torch.is_floating_point, torch.is_complex, torch.is_same_size, torch.is_inference),
        *(torch.is_signed, torch.is_conj, torch.is_neg, torch.numel),
    }
)


class UnknownShapeError(TraceError):
    """The network asked for the shape of `proxy`, the result of a refused call."""

    def __init__(self, proxy: "MapProxy") -> None:
        super().__init__(f"the shape of {proxy.node.meta['name']} is not known")
        self.proxy = proxy


@hide
class MapProxy(InPlaceOperators, Casts, fx.Proxy):
    """The proxy of a map. It answers for sizes and types by its tensor of the meta device."""

    @classmethod
    def __torch_function__(
        cls, orig_method: Any, types: Any, args: tuple[Any, ...] | None = None, kwargs: Any = None
    ) -> Any:
        if orig_method in FACTS and not kwargs:
            return orig_method(*(getattr(each, "known", each) for each in args or ()))
        if orig_method in FOLDS and args and isinstance(args[0], cls):
            total = folded(FOLDS[orig_method], args[0], args[1:], kwargs or {})
            if total is not None:
                return total
        if orig_method in LIKE and args and isinstance(args[0], cls):
            return args[0].constant_like(orig_method, *args[1:], **(kwargs or {}))
        if orig_method in CONCATENATIONS:
            joined = concatenated(args or (), kwargs or {})
            if joined is not None:
                return joined
        if orig_method is torch.repeat_interleave and not _is_plain_repeat(
            *(args or ()), **(kwargs or {})
        ):
            return super().__torch_function__(orig_method, types, args, kwargs)
        if orig_method in DECOMPOSITIONS:
            return DECOMPOSITIONS[orig_method](*(args or ()), **(kwargs or {}))
        return super().__torch_function__(orig_method, types, args, kwargs)

    def sum(self, *args: Any, **kwargs: Any) -> Any:
        return torch.sum(self, *args, **kwargs)  # type: ignore[call-overload]

    def mean(self, *args: Any, **kwargs: Any) -> Any:
        return torch.mean(self, *args, **kwargs)  # type: ignore[call-overload]

    def __abs__(self) -> Any:
        return self.abs()

    def addcmul(self, tensor1: Any, tensor2: Any, *, value: float = 1) -> Any:
        return torch.addcmul(self, tensor1, tensor2, value=value)  # type: ignore[call-overload]

    def lerp(self, end: Any, weight: Any) -> Any:
        return torch.lerp(self, end, weight)  # type: ignore[call-overload]

    def repeat_interleave(self, *args: Any, **kwargs: Any) -> Any:
        return torch.repeat_interleave(self, *args, **kwargs)  # type: ignore[call-overload]

    @property
    def known(self) -> Tensor:
        """The tensor of the meta device. Raises UnknownShapeError after a refused call."""
        value = self.node.meta["value"]
        if not isinstance(value, Tensor):
            self.node.meta["kept"] = True  # code that goes on after the error has lost this call
            raise UnknownShapeError(self)
        return value

    @property
    def shape(self) -> torch.Size:
        return self.known.shape

    @property
    def mT(self) -> Any:  # noqa: N802 (torch's name)
        return self.transpose(-2, -1)

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
        return int(self.tracer.decide(self, "a number"))

    def __index__(self) -> int:
        return int(self)

    def __float__(self) -> float:
        return float(int(self))


def _is_plain_repeat(
    input: Any,  # noqa: A002 (torch's name)
    repeats: Any = None,
    dim: int | None = None,
    *,
    output_size: int | None = None,
) -> bool:
    """Whether a repeat_interleave is by a number above zero, along a dimension of the map."""
    if type(repeats) is not int or repeats < 1 or not (dim is None or dim in _dims(input)):
        return False
    size = input.numel() if dim is None else input.shape[dim]
    return output_size in (None, size * repeats)


def _dims(x: Any) -> range:
    return range(-x.dim(), x.dim())
