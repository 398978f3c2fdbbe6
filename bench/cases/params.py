"""Updates, copies and sums of float32 parameters beside torch's own."""

import torch
from torch import Tensor

from bench.cases.case import Calls
from bench.cases.tensors import EXACT_SAMPLES, Shape, few, per_sample, poisoned, randn
from tvdnn.kernels.copy import layout
from tvdnn.kernels.optim import from_partials as optim_partials
from tvdnn.kernels.optim import update as optim
from tvdnn.kernels.reduce import partials as reduce


def sgd(shape: Shape) -> Calls:
    start, grad = randn(shape, torch.float32), randn(shape, torch.float32)
    mine, theirs = start.clone(), start.clone()
    momenta = [torch.zeros_like(start) for _ in range(2)]
    control = torch.tensor([0.1, 0.9, 0.0, 1e-4, 0.0, 1.0, 0.0, 0.0])

    def own() -> Tensor:
        optim.sgd(mine, grad, momenta[0], control, nesterov=False, maximize=False)
        return mine

    def peer() -> Tensor:
        _torch_sgd(theirs, grad, momenta[1])
        return theirs

    def exact() -> Tensor:
        wide = start[:EXACT_SAMPLES].double()
        return wide - 0.1 * (grad[:EXACT_SAMPLES].double() + 1e-4 * wide)

    return Calls(own, peer, exact, few)


def adamw(shape: Shape) -> Calls:
    start, grad = randn(shape, torch.float32), randn(shape, torch.float32)
    params = [start.clone() for _ in range(2)]
    means, squares = ([torch.zeros_like(start) for _ in range(2)] for _ in range(2))
    step = torch.ones(())
    settings = {"lr": 1e-3, "eps": 1e-8, "weight_decay": 1e-2}
    control = torch.tensor(optim.adamw_control(step=1, betas=(0.9, 0.999), **settings))

    def own() -> Tensor:
        optim.adamw(params[0], grad, means[0], squares[0], control, maximize=False)
        return params[0]

    def peer() -> Tensor:
        torch._fused_adamw_(
            params[1:], [grad], means[1:], squares[1:], [], [step],
            beta1=0.9, beta2=0.999, amsgrad=False, maximize=False, **settings,
        )  # fmt: skip
        return params[1]

    def exact() -> Tensor:
        wide, gradient = start[:EXACT_SAMPLES].double(), grad[:EXACT_SAMPLES].double()
        return wide * (1 - 1e-5) - 1e-3 * gradient / (gradient.abs() + 1e-8)

    return Calls(own, peer, exact, few)


def sgd_partials(shape: Shape) -> Calls:
    """The sum of the partials and the update; torch's by two launches."""
    partials, start = randn(shape, torch.float32), randn(shape[1:], torch.float32)
    params = [start.permute(0, 3, 1, 2).contiguous() for _ in range(2)]
    momenta = [torch.zeros_like(param) for param in params]
    control = torch.tensor([0.1, 0.9, 0.0, 1e-4, 0.0, 1.0, 0.0, 0.0])

    def own() -> Tensor:
        update = optim_partials.sgd_partials
        update(params[0], partials, momenta[0], control, nesterov=False, maximize=False)
        return params[0]

    def peer() -> Tensor:
        grad = partials.sum(0).permute(0, 3, 1, 2).contiguous()
        _torch_sgd(params[1], grad, momenta[1])
        return params[1]

    def exact() -> Tensor:
        wide = start.double()
        moved = wide - 0.1 * (partials.double().sum(0) + 1e-4 * wide)
        return moved.permute(0, 3, 1, 2)

    return Calls(own, peer, exact)


def cast(shape: Shape) -> Calls:
    weight, narrow = randn(shape, torch.float32), poisoned(shape, torch.bfloat16)
    return per_sample(
        lambda: layout.cast(weight, narrow), narrow,
        lambda values: values.bfloat16() if values.dtype == torch.float32 else values, weight,
    )  # fmt: skip


def sum_partials(shape: Shape) -> Calls:
    partials, grad = randn(shape, torch.float32), poisoned(shape[1:], torch.float32)
    grad = grad.permute(0, 3, 1, 2).contiguous()

    def own() -> Tensor:
        reduce.sum_partials(partials, grad, first=True)
        return grad

    def total(values: Tensor) -> Tensor:
        return values.sum(0).permute(0, 3, 1, 2)

    return Calls(own, lambda: total(partials), lambda: total(partials.double()))


def _torch_sgd(param: Tensor, grad: Tensor, momentum: Tensor) -> None:
    torch._fused_sgd_(
        [param], [grad], [momentum], weight_decay=1e-4, momentum=0.9, lr=0.1,
        dampening=0.0, nesterov=False, maximize=False, is_first_step=False,
    )  # fmt: skip
