"""Proxies of maps, which answer for sizes and types as tensors of the meta device."""

from collections.abc import Callable, Mapping, Sequence
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
        answer = _ANSWERS.get(orig_method)
        if answer is not None:
            found = answer(orig_method, args or (), kwargs or {})
            if found is not NotImplemented:
                return found
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


def _fact(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if kwargs:
        return NotImplemented
    return function(*(getattr(each, "known", each) for each in args))


def _folded(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if not args or not isinstance(args[0], MapProxy):
        return NotImplemented
    return folded(FOLDS[function], args[0], args[1:], kwargs)


def _constant_like(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if not args or not isinstance(args[0], MapProxy):
        return NotImplemented
    return args[0].constant_like(function, *args[1:], **kwargs)


def _concatenated(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return concatenated(args, kwargs)


def _decomposed(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return DECOMPOSITIONS[function](*args, **kwargs)


def _as_a_map_is(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A tensor of no map, moved to a map's device and cast to its type."""
    x, *others = args
    if isinstance(x, MapProxy) or kwargs or len(others) != 1:
        return NotImplemented
    (other,) = others
    return other.tracer.side_effects.called(Tensor.to, x, other.device, other.dtype)


# What functions make of maps in the place of a call of their own. NotImplemented says that the call
# is one after all.
_ANSWERS: Mapping[Any, Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]] = {
    **dict.fromkeys(FACTS, _fact),
    **dict.fromkeys(FOLDS, _folded),
    **dict.fromkeys(LIKE, _constant_like),
    **dict.fromkeys(CONCATENATIONS, _concatenated),
    **dict.fromkeys(DECOMPOSITIONS, _decomposed),
    **dict.fromkeys((Tensor.to, Tensor.type_as), _as_a_map_is),
}
