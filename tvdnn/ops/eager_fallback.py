"""Opaque ops: submodules that run torch's own code and autograd inside the schedule.

Forward keeps only its inputs. Backward runs the submodule again and takes gradients. The whole
batch runs at once, in float32. Torch rounds no operand to TF32 where maps are float32 and the
engine's products are exact. Torch's own allocations lie outside the arena: their peak is measured
beforehand and counted in the budget.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
Maps = Sequence[Tensor]
Buffers = Sequence[Tensor]
_SWITCHES: Any = (torch.backends.cudnn.conv, torch.backends.cuda.matmul)  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class Argument:
    """Stands for one of the maps that a submodule takes, among its arguments."""

    number: int


def forward(b: Builder, op: Op) -> None:
    """One pass, which also changes the statistics that batch normalizations track."""
    reads, writes = _inputs(b, op), (Use(b.new_output(op)),)
    params, tracked = _divided(op)
    how: dict[str, Any] = {"updates": tracked, "effects": bool(tracked)}
    b.add_pass(op, "forward", reads, writes, params=params, unit=b.batch, **how)


def _divided(op: Op) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The parameters, and the buffers that forward changes."""
    count = len(op.attrs["names"])
    return op.params[:count], op.params[count:]


def _inputs(b: Builder, op: Op) -> tuple[Use, ...]:
    return tuple(Use(b.buffer_of[name]) for name in op.inputs)


def backward(b: Builder, op: Op) -> None:
    """One pass makes the gradients that are wanted of inputs and parameters, where there are any.

    Torch makes none of those that the gradient of the result does not reach.
    """
    reached, (params, _) = op.attrs["reached"], _divided(op)
    reads = (*_inputs(b, op), Use(b.grad_of(op)))
    wanted = _both(map(b.needs_grad, op.inputs), reached.maps)
    names = (name for name, wants in zip(op.inputs, wanted, strict=True) if wants)
    dx = tuple(Use(b.new_grad(name)) for name in names)
    trained = _both(map(b.needs_param_grad, params), reached.params)
    names = (name for name, trains in zip(params, trained, strict=True) if trains)
    grads = tuple(whole(b.new_param_grad(name)) for name in names)
    attrs = {"wanted": wanted, "trained": trained}
    writes = (*dx, *grads)
    if not writes:
        return
    b.add_pass(op, "grad", reads, writes, params=params, unit=b.batch, attrs=attrs)


def _both(needed: Iterable[bool], reached: Iterable[bool]) -> tuple[bool, ...]:
    return tuple(need and reach for need, reach in zip(needed, reached, strict=True))


def _run_forward(a: Launch) -> None:
    with _products_of(a):
        tracked = _present(buffer for (buffer,) in a.updates)
        y = _forward(a.attrs, _present(a.params), _read_maps(a), tracked)
    _write_back(a, y, a.writes[0], *a.attrs["makes"])


def _run_grad(a: Launch) -> None:
    xs, dy = _read_maps(a), _in_torchs_order(a.reads[-1], *a.attrs["makes"])
    with _products_of(a):
        grads = _gradients(a.attrs, _present(a.params), xs, dy)
    forms = [form for form, wants in zip(a.attrs["takes"], a.attrs["wanted"], strict=True) if wants]
    count = len(forms)
    for grad, target, form in zip(grads[:count], a.writes[:count], forms, strict=True):
        _write_back(a, grad, target, *form)
    for grad, target in zip(grads[count:], a.writes[count:], strict=True):
        target.copy_(grad)


def _read_maps(a: Launch) -> list[Tensor]:
    """The maps that the submodule takes."""
    forms = a.attrs["takes"]
    return [_in_torchs_order(x, *form) for x, form in zip(a.reads, forms, strict=False)]


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


def _present(tensors: Iterable[Tensor | None]) -> list[Tensor]:
    """The tensors of an op, none of which is absent here, as a bias may be elsewhere."""
    return [each for each in tensors if each is not None]


def _in_torchs_order(stored: Tensor, shape: Sequence[int], axes: Sequence[int]) -> Tensor:
    """A float32 copy of a map of this shape, which is stored so, in torch's order."""
    x = torch.empty(shape, device=stored.device)
    return x.copy_(_as_torch_has(stored, shape, axes))


def _write_back(
    a: Launch, value: Tensor, target: Tensor, shape: Sequence[int], axes: Sequence[int]
) -> None:
    """Write torch's tensor to a map of this shape, which is stored so."""
    source = torch.empty(target.shape, device=target.device)
    _as_torch_has(source, shape, axes).copy_(value)
    a.kernels.cast(source, target, precision=a.stored)


def _as_torch_has(stored: Tensor, shape: Sequence[int], axes: Sequence[int]) -> Tensor:
    """A map in torch's order of dimensions."""
    return stored.view([shape[axes.index(axis)] for axis in range(len(axes))]).permute(*axes)


def _forward(attrs: Mapping[str, Any], params: Params, xs: Maps, tracked: Buffers) -> Tensor:
    with torch.no_grad():
        return _call(attrs, params, xs, tracked)


def _scratch(attrs: Mapping[str, Any]) -> list[Tensor]:
    """What a call may write in the place of the buffers that forward alone changes."""
    return [torch.zeros_like(attrs["module"].get_buffer(name)) for name in attrs["tracked"]]


def _gradients(attrs: Mapping[str, Any], params: Params, xs: Maps, dy: Tensor) -> Maps:
    """Gradients of the `wanted` maps and the `trained` parameters."""
    xs = [x.requires_grad_(wants) for x, wants in zip(xs, attrs["wanted"], strict=True)]
    pairs = zip(params, attrs["trained"], strict=True)
    leaves = [param.detach().requires_grad_(trains) for param, trains in pairs]
    asked = [each for each in (*xs, *leaves) if each.requires_grad]
    with torch.enable_grad():
        y = _call(attrs, leaves, xs, _scratch(attrs))
        return torch.autograd.grad(y, asked, dy, materialize_grads=True)


def _call(attrs: Mapping[str, Any], params: Params, xs: Maps, tracked: Buffers) -> Tensor:
    """The submodule's result on copies of maps, which the submodule may write over.

    Batch normalizations change the buffers `tracked`.
    """
    named, own = dict(zip(attrs["names"], params, strict=True)), [x.clone() for x in xs]
    named |= dict(zip(attrs["tracked"], tracked, strict=True))

    def filled(each: Any) -> Any:
        return own[each.number] if isinstance(each, Argument) else each

    args, kwargs = tree_map(filled, attrs["arguments"])
    with torch.autocast(own[0].device.type, enabled=False):
        made = functional_call(attrs["module"], named, args, kwargs)
    y: Tensor = made if attrs["among"] is None else made[attrs["among"]]
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
    xs = [torch.zeros(shape, device=device) for shape, _ in attrs["takes"]]
    dy = torch.zeros_like(_forward(attrs, params, xs, _scratch(attrs)))
    wanted, trained = attrs["reached"].maps, attrs["reached"].params
    if any(wanted) or any(trained):
        _gradients({**attrs, "wanted": wanted, "trained": trained}, params, xs, dy)


OPAQUE = Operator(
    "opaque",
    forward,
    backward,
    {"forward": _run_forward, "grad": _run_grad},
    saves={"input"},
    takes_rows=True,
)
