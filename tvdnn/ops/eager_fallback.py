"""Opaque ops: submodules that run torch's own code and autograd inside the schedule.

Forward keeps only its input. Backward runs the submodule again and takes gradients. The whole batch
runs at once, in float32. Torch rounds no operand to TF32 where maps are float32 and the engine's
products are exact. Torch's own allocations lie outside the arena: their peak is measured beforehand
and counted in the budget.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.utils._pytree import tree_map

from ..graph import Network, Op, Use
from .builder import Builder, whole
from .operator import Launch, Operator
from .torch_peak import peak_nbytes

Params = Sequence[Tensor]
_SWITCHES: Any = (torch.backends.cudnn.conv, torch.backends.cuda.matmul)  # type: ignore[attr-defined]


class Argument(Enum):
    """Stands for a tensor among the arguments of a submodule."""

    OF_INPUT = "input"


def forward(b: Builder, op: Op) -> None:
    x, y = b.input_of(op), b.new_output(op)
    b.add_pass(op, "forward", (Use(x),), (Use(y),), params=op.params, unit=b.batch)


def backward(b: Builder, op: Op) -> None:
    """One pass makes the gradients of the input, where it is wanted, and of parameters."""
    reads = (Use(b.input_of(op)), Use(b.grad_of(op)))
    wants_input = b.needs_grad(op.inputs[0])
    dx = (Use(b.new_grad(op.inputs[0])),) if wants_input else ()
    trained = tuple(b.needs_param_grad(name) for name in op.params)
    names = (name for name, trains in zip(op.params, trained, strict=True) if trains)
    grads = tuple(whole(b.new_param_grad(name)) for name in names)
    attrs = {"wants_input": wants_input, "trained": trained}
    writes = (*dx, *grads)
    b.add_pass(op, "grad", reads, writes, params=op.params, unit=b.batch, attrs=attrs)


def _run_forward(a: Launch) -> None:
    with _products_of(a):
        y = _forward(a.attrs, _params(a), _in_torchs_order(a, a.reads[0], "takes"))
    _write_back(a, y, a.writes[0], "makes")


def _run_grad(a: Launch) -> None:
    x, dy = _in_torchs_order(a, a.reads[0], "takes"), _in_torchs_order(a, a.reads[1], "makes")
    with _products_of(a):
        dx, grads = _gradients(a.attrs, _params(a), a.attrs["trained"], x, dy)
    writes = list(a.writes)
    if a.attrs["wants_input"]:
        _write_back(a, dx, writes.pop(0), "takes")
    for target, grad in zip(writes, grads, strict=True):
        target.copy_(grad)


@contextmanager
def _products_of(a: Launch) -> Iterator[None]:
    """Torch's float32 products as exact as the engine's.

    Torch has one switch for all threads: another thread's products may be exact meanwhile as well.
    """
    exact = a.precision == "ieee" and a.reads[0].dtype == torch.float32
    switches = _SWITCHES if exact else ()
    before = [switch.fp32_precision for switch in switches]
    try:
        for switch in switches:
            switch.fp32_precision = "ieee"
        yield
    finally:
        for switch, precision in zip(switches, before, strict=True):
            switch.fp32_precision = precision


def _params(a: Launch) -> Params:
    return [param for param in a.params if param is not None]  # an opaque op's are all there


def _in_torchs_order(a: Launch, stored: Tensor, name: str) -> Tensor:
    """A float32 copy of the map that the settings `name` describe, in torch's order."""
    x = torch.empty(a.attrs[name], device=stored.device)
    return x.copy_(_as_torch_has(stored, *a.settings(name, f"{name}_axes").values()))


def _write_back(a: Launch, value: Tensor, target: Tensor, name: str) -> None:
    """Write torch's tensor to the map that the settings `name` describe."""
    source = torch.empty(target.shape, device=target.device)
    _as_torch_has(source, *a.settings(name, f"{name}_axes").values()).copy_(value)
    a.kernels.cast(source, target, precision=a.stored)


def _as_torch_has(stored: Tensor, shape: Sequence[int], axes: Sequence[int]) -> Tensor:
    """A map in torch's order of dimensions."""
    return stored.view([shape[axes.index(axis)] for axis in range(len(axes))]).permute(*axes)


def _forward(attrs: Mapping[str, Any], params: Params, x: Tensor) -> Tensor:
    with torch.no_grad():
        return _call(attrs, params, x)


def _gradients(
    attrs: Mapping[str, Any], params: Params, trained: Sequence[bool], x: Tensor, dy: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """Gradients of the input and of the trained parameters, zero where the result needs none."""
    x.requires_grad_()
    leaves = [p.detach().requires_grad_(trains) for p, trains in zip(params, trained, strict=True)]
    wanted = [x, *(leaf for leaf in leaves if leaf.requires_grad)]
    with torch.enable_grad():
        y = _call(attrs, leaves, x)
        if not y.requires_grad:
            return torch.zeros_like(x), [torch.zeros_like(leaf) for leaf in wanted[1:]]
        grads = torch.autograd.grad(y, wanted, dy, materialize_grads=True)
    return grads[0], list(grads[1:])


def _call(attrs: Mapping[str, Any], params: Params, x: Tensor) -> Tensor:
    """The submodule's result on a copy of `x`, which the submodule may write over."""
    named, own = dict(zip(attrs["names"], params, strict=True)), x.clone()

    def filled(each: Any) -> Any:
        return own if each is Argument.OF_INPUT else each

    args, kwargs = tree_map(filled, attrs["arguments"])
    with torch.autocast(x.device.type, enabled=False):
        made = functional_call(attrs["module"], named, args, kwargs)
    y: Tensor = made if attrs["among"] is None else made[attrs["among"][0]]
    return y


def opaque_nbytes(network: Network, device: torch.device) -> int:
    """The most bytes that torch has allocated at once while an opaque op of the network runs.

    Each one runs once, forward and backward.
    """
    ops = (op for op in network.ops if op.kind == "opaque")
    return max((peak_nbytes(partial(_run_once, op.attrs, device), device) for op in ops), default=0)


def _run_once(attrs: Mapping[str, Any], device: torch.device) -> None:
    # In float32, as a step has them.
    own = (param.detach() for param in attrs["module"].parameters())
    params = [param.float() if param.is_floating_point() else param for param in own]
    x = torch.zeros(attrs["takes"], device=device)
    dy = torch.zeros_like(_forward(attrs, params, x))
    _gradients(attrs, params, [param.is_floating_point() for param in params], x, dy)


OPAQUE = Operator(
    "opaque",
    forward,
    backward,
    {"forward": _run_forward, "grad": _run_grad},
    saves={"input"},
    takes_rows=True,
)
