"""The eager runner: the passes of one op on torch's tensors, forward and backward.

A layer that is called alone runs what an engine runs of its op in one section, by the same kernels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import has_torch_function

from ..errors import InputError
from ..ops.loss import TARGET
from ..ops.operator import Control
from ..runtime.kernel_set import kernel_set
from .layouts import CHANNELS_LAST, Layout, dense
from .one_op import GRAD_Y, PARAMS, NamedPass, OneOp, X, Y, one_op

TRITON: Final = kernel_set("triton")
REFERENCES: Final = kernel_set("torch")
_NAMES: Final = {torch.float32: "fp32", torch.bfloat16: "bf16"}
_NOTHING: Final = torch.empty(0)


class _Scalars(Control):
    """The device scalars of a call. No label stops the changes of a layer's state."""

    @property
    def flag(self) -> Any:
        return None


_NO_SCALARS: Final = _Scalars(_NOTHING, _NOTHING, _NOTHING)


def kernels_for(x: Tensor) -> SimpleNamespace:
    """The Triton launchers where `x` is on a GPU, else their plain PyTorch references."""
    return TRITON if x.is_cuda else REFERENCES


def torchs_own(*tensors: Tensor) -> bool:
    """Whether a call is left to torch: on fx proxies, tensor subclasses and meta tensors."""
    return has_torch_function(tensors) or any(tensor.is_meta for tensor in tensors)


def checked(x: Tensor) -> Tensor:
    """`x`, if the kernels take its type."""
    if x.dtype not in _NAMES:
        name = str(x.dtype).removeprefix("torch.")
        raise InputError(f"the input is {name}; tvdnn's layers take float32 and bfloat16")
    return x


def checked_map(x: Tensor) -> Tensor:
    """`x`, if it is a map and the kernels take its type."""
    if x.dim() != 4:
        raise InputError(f"the input has shape {tuple(x.shape)}; maps are [N, C, H, W]")
    return checked(x)


def autocast(x: Tensor) -> Tensor:
    """`x`, checked, in the type that torch.autocast asks matrix products to be in."""
    kind = x.device.type
    return checked(x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x)


@dataclass(slots=True)
class _Request:
    """An op, its settings and all that it takes but the input and the parameters that may train."""

    kind: str
    # The static settings.
    attrs: Mapping[str, Any] = field(default_factory=dict)
    layout: Layout = CHANNELS_LAST
    # The result's shape in the kernels' order, if it is not the input's.
    out: tuple[int, ...] | None = None
    # That of products of float32.
    precision: str = "ieee"
    # The parameters of the op that do not train, a loss's target and a random op's seed.
    state: Sequence[Tensor | None] = ()
    target: Tensor | None = None
    seed: Tensor | None = None
    # Whether the result is wanted in the input.
    inplace: bool = False
    # Whether the gradient, which reads the result, may as well read the input, so that others may
    # write over the result.
    by_input: bool = False


def run(kind: str, x: Tensor, *params: Tensor | None, **given: Any) -> Tensor:
    """What the op of this kind makes of `x` and `params`; `given` is the rest of the `_Request`."""
    request = _Request(kind, **given)
    if x.numel() == 0 and 0 in (request.out or x.shape):
        return _of_no_elements(request, x, *params)
    if not torch.is_autocast_enabled(x.device.type):
        return _apply(request, x, *params)
    with torch.autocast(x.device.type, enabled=False):
        return _apply(request, x, *params)


def _apply(request: _Request, x: Tensor, *params: Tensor | None) -> Tensor:
    y: Tensor = _OneOp.apply(request, x, *params)
    return y


def _of_no_elements(request: _Request, x: Tensor, *params: Tensor | None) -> Tensor:
    """A result without elements, whose gradients are zeros."""
    if request.inplace:
        return x
    shape = request.out or request.layout.enter(x.detach()).shape
    y = request.layout.leave(x.new_zeros(shape), x)
    sums = [each.sum().to(x.dtype) for each in (x, *params) if each is not None]
    return y * torch.stack(sums).sum()


class _OneOp(torch.autograd.Function):
    """The passes forward, and backward those behind the gradient of the result."""

    @staticmethod
    def forward(ctx: Any, request: _Request, x: Tensor, *params: Tensor | None) -> Tensor:
        layout = request.layout
        entered = layout.enter(x)
        op = _op_of(request, entered, params, ctx.needs_input_grad[1:])
        operands = [None if each is None else _operand(each) for each in params]
        tensors: dict[str, Any] = dict(zip(PARAMS, (*operands, *request.state), strict=False))
        tensors[X], tensors[TARGET] = entered, request.target
        kept = x
        if request.inplace:
            ctx.mark_dirty(x)
            tensors[Y] = entered
            if X in op.saved:
                kept = layout.back(entered.clone(), x)
        scalars = _NO_SCALARS if request.seed is None else _scalars(seed=request.seed)
        _run(op, op.forward, tensors, scalars, entered)
        y = _result(request, tensors[layout.result], x)
        if op.backward:
            tensors |= zip(PARAMS, params, strict=False)
            tensors[X] = kept
            if not layout.is_loss:
                tensors[Y] = x if request.by_input and not request.inplace else y
            ctx.save_for_backward(*[tensors[name] for name in op.saved])
            ctx.op, ctx.request = op, request
            ctx.like = [_like(*pair) for pair in zip(params, operands, strict=True)]
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        op, request, layout = ctx.op, ctx.request, ctx.request.layout
        tensors: dict[str, Any] = {}
        for name, value in zip(op.saved, ctx.saved_tensors, strict=True):
            if name == X or (name == Y and not layout.is_loss):
                value = layout.enter(value)
            tensors[name] = _operand(value) if name in PARAMS else value
        if layout.is_loss:
            scalars = _scalars(scale=layout.scale(dy))
        else:
            tensors[GRAD_Y] = layout.enter(dy)
            scalars = _NO_SCALARS if request.seed is None else _scalars(seed=request.seed)
        for name, like in zip(op.param_grads, ctx.like, strict=True):
            if name:
                tensors[name] = dy.new_empty_strided(*like[1:], dtype=torch.float32)
        _run(op, op.backward, tensors, scalars, dy)
        dx = layout.back(tensors[op.input_grad], dy) if op.input_grad else None
        pairs = zip(op.param_grads, ctx.like, strict=True)
        return None, dx, *[tensors[name].to(like[0]) if name else None for name, like in pairs]


def _op_of(
    request: _Request, x: Tensor, params: Sequence[Tensor | None], wants: tuple[bool, ...]
) -> OneOp:
    """The op of an input that has been brought to the kernels' order."""
    tf32 = request.precision == "tf32" and x.dtype is torch.float32
    return one_op(
        request.kind,
        tuple(request.attrs.items()),
        x.shape,
        request.out,
        tuple([None if each is None else each.shape for each in (*params, *request.state)]),
        wants,
        "tf32" if tf32 else _NAMES[x.dtype],
        request.layout.result,
    )


def _result(request: _Request, made: Tensor, x: Tensor) -> Tensor:
    """What kernels have made, in torch's order: in `x` itself where that is asked for."""
    if not request.inplace:
        return request.layout.leave(made, x)
    return x if made.data_ptr() == x.data_ptr() else x.copy_(request.layout.back(made, x))


def _operand(param: Tensor) -> Tensor:
    """A parameter as the kernels read it."""
    return dense(param.float())


def _like(param: Tensor | None, operand: Tensor | None) -> Any:
    """The type of a parameter's gradient, and the shape and strides of what kernels write."""
    if param is None or operand is None:
        return None
    return param.dtype, operand.shape, operand.stride()


def _scalars(scale: Tensor = _NOTHING, seed: Tensor = _NOTHING) -> Control:
    return _Scalars(_NOTHING, scale, seed)


def _run(
    op: OneOp,
    passes: Sequence[NamedPass],
    tensors: dict[str, Any],
    scalars: Control,
    like: Tensor,
) -> None:
    """Run passes on tensors by name, to which what they write is added, on the device of `like`."""
    kernels, rows, made = kernels_for(like), (0, op.batch), op.made
    for each in passes:
        for name in each.writes:
            if name not in tensors:
                shape, dtype = made[name]
                tensors[name] = like.new_empty(shape, dtype=dtype)
        launch = each.bound.launch(
            kernels,
            tuple([tensors[name] for name in each.reads]),
            tuple([tensors[name] for name in each.writes]),
            tuple([tensors.get(name) for name in each.params]) if each.params else (),
            tuple([(tensors[name],) for name in each.updates]) if each.updates else (),
            rows,
            scalars,
        )
        each.bound.run(launch)
        for name in each.frees:
            del tensors[name]
