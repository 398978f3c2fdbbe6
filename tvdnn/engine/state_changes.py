"""Changes of a network's own tensors by its forward, made again in each step."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.fx.node import map_aggregate

from ..graph.state import Made, Named, StateChanges
from ..trace.state.tape import tensors_in

Copy: TypeAlias = tuple[Tensor, Tensor]  # a tensor, and a copy of what it held
Copies: TypeAlias = list[Copy]


def change_state(
    changes: StateChanges, tensors: Mapping[str, Tensor], device: torch.device
) -> None:
    """Make the calls of `changes` once on `tensors`: parameters, buffers and held copies."""
    made: dict[int, Tensor] = {}

    def real(value: Any) -> Any:
        if isinstance(value, Named):
            return tensors[value.name]
        if isinstance(value, Made):
            return made[value.number]
        return device if isinstance(value, torch.device) and value.type == "meta" else value

    with torch.no_grad():
        for call in changes.calls:
            args, kwargs = map_aggregate((call.args, call.kwargs), real)
            result = call.function(*args, **kwargs)
            made |= zip(call.makes, tensors_in(result), strict=True)


def copied(tensors: Iterable[Tensor]) -> Copies:
    return [(tensor, tensor.detach().clone()) for tensor in tensors]


def on_host(tensor: Tensor) -> Tensor:
    """A copy in the host's memory."""
    return tensor.detach().to("cpu", copy=True)


def copied_to_host(tensors: Iterable[Tensor]) -> Copies:
    return [(tensor.detach(), on_host(tensor)) for tensor in tensors]


def write_back(before: Copies) -> None:
    """Write the copies to their tensors."""
    with torch.no_grad():
        for tensor, copy in before:
            tensor.copy_(copy)


@contextmanager
def restored_after_failure(before: Copies) -> Iterator[None]:
    """A context that writes the copies back where its block raises an exception."""
    try:
        yield
    except BaseException:
        write_back(before)
        raise


def restore_where(flag: Tensor, before: Copies) -> None:
    """Write the copies back if the 0-d `flag` is not 0, without waiting for the device.

    Afterwards each copy equals its tensor.
    """
    with torch.no_grad():
        for tensor, copy in before:
            tensor.copy_(torch.where(flag != 0, copy, tensor, out=copy))
