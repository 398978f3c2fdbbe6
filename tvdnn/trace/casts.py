"""Casts and moves of maps, and constants of their type, in a network's own code.

An engine computes in the type and on the device that it was given. A network's casts do not change
them. Traced maps are float32. A cast to float32 is the map itself, as in torch. A cast to another
floating-point type is a map of its own. A cast to integers is refused.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor, fx

LIKE: Final[Mapping[Callable[..., Any], Callable[..., Any]]] = {
    torch.empty_like: torch.empty,
    torch.full_like: torch.full,
    torch.ones_like: torch.ones,
    torch.rand_like: torch.rand,
    torch.randn_like: torch.randn,
    torch.zeros_like: torch.zeros,
}


class Casts:
    """The methods of a proxy that cast a map, move it to a device, or make a constant beside it."""

    tracer: Any
    shape: Any
    dtype: Any
    device: Any

    def new(self, *size: Any, **form: Any) -> Any:
        """An empty tensor of sizes; of data it is refused by name."""
        sizes = size[0] if len(size) == 1 and isinstance(size[0], torch.Size) else size
        if form or not all(isinstance(each, int) for each in sizes):
            return self._call("new", *size, **form)
        return self.new_empty(*sizes)

    def new_empty(self, *size: Any, **form: Any) -> Any:
        return torch.empty(*size, **self._type_and_device(form))

    def new_ones(self, *size: Any, **form: Any) -> Any:
        return torch.ones(*size, **self._type_and_device(form))

    def new_zeros(self, *size: Any, **form: Any) -> Any:
        return torch.zeros(*size, **self._type_and_device(form))

    def new_full(self, size: Any, fill_value: Any, **form: Any) -> Any:
        return torch.full(size, fill_value, **self._type_and_device(form))

    def constant_like(self, function: Callable[..., Any], *values: Any, **form: Any) -> Any:
        """A constant of the map's shape, as one of `LIKE` makes it."""
        form.pop("memory_format", None)
        called = self.tracer.side_effects.called
        return called(LIKE[function], self.shape, *values, **self._type_and_device(form))

    def _type_and_device(self, form: dict[str, Any]) -> dict[str, Any]:
        given = {name: each for name, each in form.items() if each is not None}
        return {"dtype": self.dtype, "device": self.device} | given

    def float(self, **memory_format: Any) -> Any:
        return self

    def half(self, **memory_format: Any) -> Any:
        return self._as_floating_point(torch.float16)

    def bfloat16(self, **memory_format: Any) -> Any:
        return self._as_floating_point(torch.bfloat16)

    def double(self, **memory_format: Any) -> Any:
        return self._as_floating_point(torch.float64)

    def cuda(self, *settings: Any, **named: Any) -> Any:
        return self

    def cpu(self, **memory_format: Any) -> Any:
        return self

    def type_as(self, other: Any) -> Any:
        found = self._as_floating_point(other.dtype)
        return self._call("type_as", other) if found is None else found

    def type(self, dtype: Any = None, **settings: Any) -> Any:
        found = self._as_floating_point(dtype) if isinstance(dtype, torch.dtype) else None
        return self._call("type", dtype) if found is None else found

    def to(self, *args: Any, copy: bool = False, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        dtypes: list[Any] = [each for each in given if isinstance(each, torch.dtype)]
        dtypes += [each.dtype for each in given if isinstance(each, (Tensor, fx.Proxy))]
        copies = copy or any(each is True for each in args[-1:])
        found = self._as_floating_point(dtypes[0]) if dtypes else self
        if found is None:
            return self._call("to", *args, **kwargs)
        return self._call("clone") if copies and found is self else found

    def _as_floating_point(self, dtype: torch.dtype) -> Any:
        if dtype == torch.float32:
            return self
        return self._call("clone") if dtype.is_floating_point else None

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return self.tracer.create_proxy("call_method", method, (self, *args), kwargs)
