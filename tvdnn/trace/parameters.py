"""The parameters and buffers that a traced network reads: checks, and records of them."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from ..errors import InputError
from ..graph.network import Network, Op, Param
from ..graph.state import StateChanges
from .state.formulas import Formula
from .state.functionalize import storage_of
from .state.recorded_calls import RecordedCalls

PARAM_DTYPES = (torch.float32, torch.bfloat16)  # the latter by float32 copies


def check_parameters(module: torch.nn.Module) -> None:
    """Raise InputError for a parameter of another type, or whose elements share memory.

    Those of one that trains have no gaps between them, either: its gradient has as many bytes as
    it has elements, and its strides.
    """
    for name, param in module.named_parameters():
        if param.dtype not in PARAM_DTYPES:
            raise InputError(
                f"parameter {name} is {_name(param.dtype)}, neither float32 nor bfloat16; call"
                " .float() on the module (the dtype of the computation is chosen apart)"
            )
        if not is_lazy(param) and _shares_elements(param):
            raise InputError(
                f"parameter {name} is expanded: its elements share memory; make it of a .clone()"
            )
        if param.requires_grad and not is_lazy(param) and not _is_dense(param):
            raise InputError(
                f"parameter {name} of strides {param.stride()} leaves gaps between its elements;"
                " make it of a .contiguous() tensor"
            )


def _shares_elements(param: Tensor) -> bool:
    sizes = zip(param.shape, param.stride(), strict=True)
    return any(size > 1 and step == 0 for size, step in sizes)


def _is_dense(param: Tensor) -> bool:
    """Whether elements lie side by side, in any order of the dimensions."""
    return torch.empty_like(param, device="meta").stride() == param.stride()


def check_buffers(module: torch.nn.Module, network: Network) -> None:
    """Raise InputError for a read buffer that has a gradient or is part of a trained parameter."""
    params, buffers = dict(module.named_parameters()), dict(module.named_buffers())
    names = [network.changes.held.get(name, name) for name in network.params]
    trained = {storage_of(params[each]): each for each in names if _trains(params.get(each))}
    for name in (each for each in names if each in buffers and each not in params):
        if _trains(buffers[name]):
            raise InputError(f"buffer {name} requires a gradient; register it as a parameter")
        if (other := trained.get(storage_of(buffers[name]))) is not None:
            raise InputError(
                f"buffer {name} shares the storage of the parameter {other}, which trains; register"
                " a copy of it (.detach().clone())"
            )


def _trains(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.requires_grad


def params_of(
    module: torch.nn.Module, ops: Sequence[Op], recorded: RecordedCalls, held: Mapping[str, str]
) -> tuple[dict[str, Param], dict[str, Formula]]:
    """The parameters and buffers that ops read, in the order of first use, and the formulas.

    The tensors that a formula reads are among them. `held` are names of buffers by those of their
    copies.
    """
    trained = dict(module.named_parameters())
    tensors = {**dict(module.named_buffers()), **trained}
    tensors |= {copy: tensors[name] for copy, name in held.items()}
    used = dict.fromkeys(name for op in ops for name in op.params if name)
    formulas = {name: recorded.formulas[name] for name in used if name in recorded.formulas}
    read = dict.fromkeys(name for formula in formulas.values() for name in formula.names)
    params = {
        name: _computed_param(name, recorded)
        if name in formulas
        else _param_record(
            name, tensors[name], torch.float32 if name in trained else tensors[name].dtype
        )
        for name in {**used, **read}
    }
    return params, formulas


def _param_record(name: str, tensor: Tensor, dtype: torch.dtype) -> Param:
    nbytes = tensor.numel() * dtype.itemsize
    return Param(name, tuple(tensor.shape), nbytes, tensor.requires_grad, _name(dtype))


def _computed_param(name: str, recorded: RecordedCalls) -> Param:
    value, formula = recorded.values[name], recorded.formulas[name]
    nbytes = value.numel() * torch.float32.itemsize
    trains = bool(formula.reaches)
    return Param(name, tuple(value.shape), nbytes, trains, computed_from=formula.names)


def changes_of_formulas(
    formulas: Mapping[str, Formula], ops: Sequence[Op], changes: StateChanges
) -> Iterator[str]:
    """Why formulas cannot be computed before a step: the step changes a tensor that they read."""
    changed = {name: op.name for op in ops if op.attrs.get("training") for name in op.params[2:]}
    by_torch = [op for op in ops if op.attrs.get("tracked")]
    changed |= {name: op.name for op in by_torch for name in op.params[len(op.attrs["names"]) :]}
    changed |= dict.fromkeys(changes.written, "forward")
    for computed, formula in formulas.items():
        for name in formula.names:
            if name in changed:
                yield (
                    f"{changed[name]} changes {name} in each step, of which {computed} is made"
                    f"{formula.at}"
                )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
