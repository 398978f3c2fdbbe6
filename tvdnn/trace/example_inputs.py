"""Checks example inputs, and makes meta tensors by the names of forward's arguments."""

import inspect
from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import InputError


def meta_inputs(module: torch.nn.Module, example_inputs: Sequence[Tensor]) -> dict[str, Tensor]:
    """Float32 meta tensors of the inputs' shapes by the names of forward's arguments.

    Raises InputError for inputs that forward does not take and for inputs that are no batch.
    """
    if not example_inputs:
        raise InputError("there are no example inputs; give at least one tensor")
    names = _argument_names(module, example_inputs)
    for name, tensor in zip(names, example_inputs, strict=True):
        _check_input(name, tensor, batch=example_inputs[0].shape[:1])
    return {
        name: torch.empty(
            tensor.shape, dtype=torch.float32, device="meta", requires_grad=tensor.requires_grad
        )
        for name, tensor in zip(names, example_inputs, strict=True)
    }


def _argument_names(module: torch.nn.Module, example_inputs: Sequence[Tensor]) -> list[str]:
    """The names of forward's arguments; those that share one name are numbered."""
    signature = inspect.signature(module.forward)
    try:
        arguments = signature.bind(*example_inputs).arguments
    except TypeError as error:
        count = f"{len(example_inputs)} example inputs"
        raise InputError(
            f"{type(module).__name__}.forward does not take {count}: {error}"
        ) from error
    names: list[str] = []
    for name, value in arguments.items():
        many = signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
        names += [f"{name}{index}" for index in range(len(value))] if many else [name]
    return names


def _check_input(name: str, tensor: Tensor, *, batch: torch.Size) -> None:
    shape = tuple(tensor.shape)
    if len(shape) not in (2, 3, 4):
        raise InputError(
            f"input {name} has shape {shape}; inputs are [N, C, H, W], [N, C, L] or [N, F]"
        )
    if tensor.shape[:1] != batch:
        raise InputError(
            f"input {name} has a batch of {shape[0]} where the first input's is {batch[0]}"
        )
    if not tensor.is_floating_point():
        found = str(tensor.dtype).removeprefix("torch.")
        raise InputError(f"input {name} is {found}; inputs are of a floating-point type")
