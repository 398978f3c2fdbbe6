"""Updates of parameters in place, one by one and many by a launch."""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from bench.cases.case import At, KernelCase, Measured
from bench.cases.launch import EXACT_SAMPLES, Launch, Peer, Settings, first_samples, launching
from bench.cases.operands import Operands, Shape
from bench.cases.shapes import FC6
from tvdnn.kernels.optim.update import adamw, adamw_control, adamw_many, sgd, sgd_many

DECAY: Final = 1e-4
SGD: Final = {"nesterov": False, "maximize": False}
OF_ADAMW: Final = {"lr": 1e-3, "eps": 1e-8, "weight_decay": 1e-2}


def sgd_values(o: Operands) -> Tensor:
    """The control that `sgd` reads: rate 0.1, momentum 0.9, decay 1e-4."""
    return _control(o, [0.1, 0.9, 0.0, DECAY, 0.0, 1.0, 0.0, 0.0])


def adamw_values(o: Operands) -> Tensor:
    return _control(o, adamw_control(step=1, betas=(0.9, 0.999), **OF_ADAMW))


def _control(o: Operands, values: Any) -> Tensor:
    control = o.full(0.0, 8)
    return control.copy_(torch.tensor(values)) if o.holds_values else control


def updated(o: Operands, count: int, shape: Shape) -> list[Tensor]:
    """A parameter and its states, that a launch updates. Squares are above zero."""
    return [o.updated(o.randn(*shape).abs_()) for _ in range(count)]


def _sgd(o: Operands, size: Shape, plain: bool = False, **settings: Any) -> Launch:
    """`plain`: without momentum."""
    start, grad = o.randn(*size), o.randn(*size)
    param, momentum = o.updated(start), o.updated(o.full(0.0, *size))
    few = slice(EXACT_SAMPLES)
    run, exact = torch_sgd(start, lambda: grad), lambda: exact_sgd(start[few], grad[few])
    operands = (param, grad, None if plain else momentum, sgd_values(o))
    peer = Peer(lambda: param, run, exact, first_samples)
    return launching(sgd, *operands, peer=peer, **SGD | settings)


def torch_sgd(start: Tensor, grad: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """torch's update of a copy that it makes once."""
    made: list[Tensor] = []

    def run() -> Tensor:
        if not made:
            made.extend((start.clone(), torch.zeros_like(start)))
        param, momentum = made
        torch._fused_sgd_(
            [param], [grad()], [momentum], weight_decay=DECAY, momentum=0.9, lr=0.1,
            dampening=0.0, nesterov=False, maximize=False, is_first_step=False,
        )  # fmt: skip
        return param

    return run


def exact_sgd(start: Tensor, grad: Tensor) -> Tensor:
    """The first step's result, in float64."""
    wide = start.double()
    return wide - 0.1 * (grad.double() + DECAY * wide)


def _adamw(o: Operands, size: Shape) -> Launch:
    start, grad = o.randn(*size), o.randn(*size)
    states = [o.updated(o.full(0.0, *size)) for _ in range(2)]
    param, made = o.updated(start), list[Tensor]()

    def run() -> Tensor:
        if not made:
            made.extend((start.clone(), *(torch.zeros_like(start) for _ in range(2))))
            made.append(torch.ones((), device=start.device))
        params, means, squares, step = ([each] for each in made)
        torch._fused_adamw_(
            params, [grad], means, squares, [], step,
            beta1=0.9, beta2=0.999, amsgrad=False, maximize=False, **OF_ADAMW,
        )  # fmt: skip
        return made[0]

    def exact() -> Tensor:
        wide, gradient = start[:EXACT_SAMPLES].double(), grad[:EXACT_SAMPLES].double()
        return wide * (1 - 1e-5) - 1e-3 * gradient / (gradient.abs() + 1e-8)

    operands = (param, grad, *states, adamw_values(o))
    peer = Peer(lambda: param, run, exact, first_samples)
    return launching(adamw, *operands, peer=peer, maximize=False)


def _many(
    launcher: Callable[..., None], control: Callable[[Operands], Tensor], states: int,
    settings: Settings,
) -> Callable[..., Launch]:  # fmt: skip
    """Makes launches of `launcher` on parameters of several sizes."""

    def make(o: Operands, size: Shape, numels: Shape = ()) -> Launch:
        numels = numels or (3 * size[-1], 7 * size[-1], size[0] * size[-1])
        tensors = [updated(o, 1 + states, (numel,)) for numel in numels]
        params, *kept = zip(*tensors, strict=True)
        grads = [o.randn(numel) for numel in numels]
        return launching(launcher, params, grads, *kept, control(o), **settings)

    return make


NUMELS = (64, 64, 128, 128, 256, 256, 1000, 10)
WHOLE, ONE = (4096, 4096), (1, 1, 1, 1)
BOTH: Final = {"nesterov": True, "maximize": True}
CASES = (
    KernelCase(
        sgd,
        _sgd,
        {"": {}, "plain": {"plain": True}, "nesterov": {"nesterov": True}, "both": BOTH},
        (At(WHOLE, {"plain": True}), At(WHOLE, BOTH), At(ONE)),
        [Measured("sgd", FC6, small=(4, 40), typed=False)],
    ),
    KernelCase(
        adamw,
        _adamw,
        compiled=(At(WHOLE), At(ONE)),
        measured=[Measured("adamw", FC6, small=(4, 40), typed=False)],
    ),
    KernelCase(
        sgd_many,
        _many(sgd_many, sgd_values, 1, SGD),
        compiled=[At((), {"numels": NUMELS})],
    ),
    KernelCase(
        adamw_many,
        _many(adamw_many, adamw_values, 2, {"maximize": False}),
        compiled=[At((), {"numels": NUMELS})],
    ),
)
