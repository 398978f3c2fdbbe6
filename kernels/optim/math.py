"""The arithmetic of SGD and AdamW, for every kernel that has a gradient at hand.

Sums of products are written as fused multiply-adds. A rule therefore has the same bits in every
kernel.
"""

from dataclasses import dataclass

import triton
import triton.language as tl


@dataclass(frozen=True, slots=True)
class Rule:
    """The update rule that a kernel is compiled for. AdamW has two states, SGD one or none."""

    adamw: bool
    nesterov: bool
    maximize: bool

    def constants(self) -> dict[str, bool]:
        """The rule as compile-time arguments of a kernel."""
        return {"ADAMW": self.adamw, "NESTEROV": self.nesterov, "MAXIMIZE": self.maximize}


def sgd_rule(nesterov: bool, maximize: bool) -> Rule:
    """The rule of torch.optim.SGD with these options."""
    return Rule(adamw=False, nesterov=nesterov, maximize=maximize)


def adamw_rule(maximize: bool) -> Rule:
    """The rule of torch.optim.AdamW (Loshchilov and Hutter 2019)."""
    return Rule(adamw=True, nesterov=False, maximize=maximize)


@triton.jit
def _sgd_step(
    param, grad, buffer, control_ptr,
    MOMENTUM: tl.constexpr, NESTEROV: tl.constexpr, MAXIMIZE: tl.constexpr,
):  # fmt: skip
    """The parameters and their momentum buffer after a step."""
    grad *= tl.load(control_ptr + 5)
    if MAXIMIZE:
        grad = -grad
    grad = tl.fma(tl.load(control_ptr + 3), param, grad)
    if MOMENTUM:
        momentum = tl.load(control_ptr + 1)
        first = tl.load(control_ptr + 4) != 0.0
        buffer = tl.fma(buffer, momentum, (1.0 - tl.load(control_ptr + 2)) * grad)
        buffer = tl.where(first, grad, buffer)
        grad = tl.fma(momentum, buffer, grad) if NESTEROV else buffer
    return tl.fma(-tl.load(control_ptr), grad, param), buffer


@triton.jit
def _adamw_step(param, grad, mean, square, control_ptr, MAXIMIZE: tl.constexpr):
    """The parameters, and the running means of gradient and squared gradient, after a step."""
    grad = tl.fma(grad, tl.load(control_ptr + 6), 0.0)
    if MAXIMIZE:
        grad = -grad
    mean = tl.fma(tl.load(control_ptr + 1), grad - mean, mean)
    square = tl.fma(tl.load(control_ptr + 2), tl.fma(grad, grad, -square), square)
    root = tl.fma(tl.sqrt(square), tl.load(control_ptr + 4), tl.load(control_ptr + 5))
    ratio = mean / root
    return tl.fma(-tl.load(control_ptr + 3), ratio, param * tl.load(control_ptr)), mean, square


@triton.jit
def apply_update(
    param_ptr, states, control_ptr, offs, mask, grad,
    ADAMW: tl.constexpr, NESTEROV: tl.constexpr, MAXIMIZE: tl.constexpr,
) -> None:  # fmt: skip
    """Update the parameters at `offs` and their states: two for AdamW, a momentum or none for SGD.

    Nothing is stored where control[7] is not 0, for example after a label that is no class. The
    flag masks the stores alone. Loads need not wait for it.
    """
    param = tl.load(param_ptr + offs, mask=mask, other=0.0)
    kept = mask & (tl.load(control_ptr + 7) == 0.0)
    if ADAMW:
        mean = tl.load(states[0] + offs, mask=mask, other=0.0)
        square = tl.load(states[1] + offs, mask=mask, other=0.0)
        param, mean, square = _adamw_step(param, grad, mean, square, control_ptr, MAXIMIZE)
        tl.store(states[0] + offs, mean, mask=kept)
        tl.store(states[1] + offs, square, mask=kept)
    else:
        buffer = param
        if len(states) == 1:
            buffer = tl.load(states[0] + offs, mask=mask, other=0.0)
        param, buffer = _sgd_step(
            param, grad, buffer, control_ptr, len(states) == 1, NESTEROV, MAXIMIZE
        )
        if len(states) == 1:
            tl.store(states[0] + offs, buffer, mask=kept)
    tl.store(param_ptr + offs, param, mask=kept)
