"""Updates of a linear layer's weight in the epilogue of the product that computes its gradient.

The gradient is never written. VGG-16's first linear layer has one of 411 MB.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..language.cost import costing
from ..optim.math import Rule, adamw_rule, apply_update, sgd_rule
from ..optim.update import adamw_reference, momentum_states, sgd_reference
from . import cost
from .gemm import Product
from .gemm_tiles import product_tile, tile_start
from .grad_weight_resident import resident_update, suits_residence
from .passes import linear_grad_weight_reference
from .transpose import Transposed, transposed_product


@triton.jit
def _update_kernel(
    a, b, m_size, n_size, k_size, group, param_ptr, states, control_ptr,
    ADAMW: tl.constexpr, NESTEROV: tl.constexpr, MAXIMIZE: tl.constexpr,
    A_BY_K: tl.constexpr, B_BY_K: tl.constexpr, DESCRIPTORS: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    TILE_GROUP: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """A program updates one tile of the weight by its gradient A B. `group` is k_size."""
    m, n = tile_start(m_size, n_size, BLOCK_M, BLOCK_N, TILE_GROUP)
    grad = product_tile(
        a, b, m, n, m_size, n_size, k_size, 0, group,
        A_BY_K, B_BY_K, DESCRIPTORS, PRECISION, BLOCK_M, BLOCK_N, BLOCK_K, NUM_STAGES,
    )  # fmt: skip
    offs_m, offs_n = m + tl.arange(0, BLOCK_M), n + tl.arange(0, BLOCK_N)
    inside = (offs_m < m_size)[:, None] & (offs_n < n_size)[None, :]
    offs = offs_m.to(tl.int64)[:, None] * n_size + offs_n[None, :]
    apply_update(param_ptr, states, control_ptr, offs, inside, grad, ADAMW, NESTEROV, MAXIMIZE)


def _launch(
    x: Tensor, dy: Tensor, param: Tensor, states: tuple[Tensor, ...], control: Tensor, rule: Rule,
    precision: str, transposed: Transposed | None,
) -> None:  # fmt: skip
    if transposed is not None:
        product = transposed_product(x, dy, transposed, precision, narrow=True)
    elif suits_residence(x, dy):
        resident_update(x, dy, param, states, control, rule)
        return
    else:
        product = Product(dy, x, True, True, precision)
    _update_kernel[product.grid](
        *product.operands(), param, states, control, **rule.constants(), **product.constants()
    )


@costing(cost.update)
def linear_grad_weight_sgd(
    x: Tensor, dy: Tensor, param: Tensor, momentum_buffer: Tensor | None, control: Tensor, *,
    nesterov: bool, maximize: bool, precision: str,
    transposed: Transposed | None = None,
) -> None:  # fmt: skip
    """`linear_grad_weight` of all samples, and `sgd` of the parameter [O, F] by that gradient."""
    states, rule = momentum_states(momentum_buffer), sgd_rule(nesterov, maximize)
    _launch(x, dy, param, states, control, rule, precision, transposed)


@costing(cost.update)
def linear_grad_weight_adamw(
    x: Tensor, dy: Tensor, param: Tensor, mean: Tensor, square: Tensor, control: Tensor, *,
    maximize: bool, precision: str,
    transposed: Transposed | None = None,
) -> None:  # fmt: skip
    """`linear_grad_weight` of all samples, and `adamw` of the parameter [O, F] by that gradient."""
    _launch(x, dy, param, (mean, square), control, adamw_rule(maximize), precision, transposed)


def linear_grad_weight_sgd_reference(
    x: Tensor, dy: Tensor, param: Tensor, momentum_buffer: Tensor | None, control: Tensor, *,
    nesterov: bool, maximize: bool, precision: str,
    transposed: Transposed | None = None,
) -> None:  # fmt: skip
    """Computes `linear_grad_weight_sgd` in torch."""
    grad = _grad_weight(x, dy, precision)
    sgd_reference(param, grad, momentum_buffer, control, nesterov=nesterov, maximize=maximize)


def linear_grad_weight_adamw_reference(
    x: Tensor, dy: Tensor, param: Tensor, mean: Tensor, square: Tensor, control: Tensor, *,
    maximize: bool, precision: str,
    transposed: Transposed | None = None,
) -> None:  # fmt: skip
    """Computes `linear_grad_weight_adamw` in torch."""
    grad = _grad_weight(x, dy, precision)
    adamw_reference(param, grad, mean, square, control, maximize=maximize)


def _grad_weight(x: Tensor, dy: Tensor, precision: str) -> Tensor:
    grad = torch.empty(dy.shape[1], x.shape[1], device=x.device)
    linear_grad_weight_reference(x, dy, grad, group=max(x.shape[0], 1), precision=precision)
    return grad
