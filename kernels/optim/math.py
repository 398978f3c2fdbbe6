"""The arithmetic of optimizers, applied to a gradient wherever it comes to be.

Products that feed a sum are written as fused multiply-adds, so that a rule has the same bits in
whatever kernel it is compiled into.
"""

from dataclasses import dataclass

import triton
import triton.language as tl


@dataclass(frozen=True, slots=True)
class Rule:
    """What a kernel is compiled for; AdamW keeps two states, SGD one or none."""

    adamw: bool
    nesterov: bool
    maximize: bool

    def constants(self) -> dict[str, bool]:
        """The rule as a kernel's arguments."""
        return {"ADAMW": self.adamw, "NESTEROV": self.nesterov, "MAXIMIZE": self.maximize}


def sgd_rule(nesterov: bool, maximize: bool) -> Rule:
    return Rule(adamw=False, nesterov=nesterov, maximize=maximize)


def adamw_rule(maximize: bool) -> Rule:
    return Rule(adamw=True, nesterov=False, maximize=maximize)


@triton.jit
def _sgd_step(
    param, grad, buffer, control_ptr,
    MOMENTUM: tl.constexpr, NESTEROV: tl.constexpr, MAXIMIZE: tl.constexpr,
):  # fmt: skip
    """The parameters and their momentum after a step."""
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
    """The parameters and the running means of the gradient and of its square after a step."""
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
    """Update the parameters at `offs`, and their states: two for AdamW, else a momentum or none.

    Nothing is stored where control[7] is not 0, as after a label that is no class. It masks stores
    alone, so that loads do not wait for it.
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
