"""What a forward changes of the module's own tensors, as each step does it."""

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
    """Make the calls once, by torch, on parameters, buffers and held copies by name."""
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


@contextmanager
def restored_after_failure(before: Copies) -> Iterator[None]:
    """A block whose exception leaves the tensors as they were."""
    try:
        yield
    except BaseException:
        with torch.no_grad():
            for tensor, copy in before:
                tensor.copy_(copy)
        raise


def restore_where(flag: Tensor, before: Copies) -> None:
    """Write back what tensors held if the 0-d `flag` is not 0, without waiting for the device.

    The copies then hold what the tensors do.
    """
    with torch.no_grad():
        for tensor, copy in before:
            tensor.copy_(torch.where(flag != 0, copy, tensor, out=copy))
