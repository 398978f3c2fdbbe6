"""Passes of a linear layer: its output, and the gradients of its input, weight and bias."""

import torch
import triton
from torch import Tensor
from torch.nn import functional

from ..language import device
from ..language.cost import costing
from ..language.rounding import stored_reference
from ..pointwise.activation_math import rectified_reference
from ..pointwise.dropout import dropout, dropout_reference
from ..reduce.partials import sum_rows, sum_rows_reference
from . import cost
from .gemm import WIDE, LinearEpilogue, Product, multiply, multiply_split, share_of
from .grad_weight_resident import resident_gradient, suits_residence
from .grad_weight_tma_store import suits_tma_store, tma_store_gradient
from .tf32_weight import COLUMNS, keeps_weight, multiply_weight, suits_weight
from .transpose import Transposed, transposed_product
from .wide_tiles import multiply_wide, suits_width


def linear_shares(outputs: int, terms: int, dtype: torch.dtype, precision: str) -> int:
    """Number of shares of a sum over `terms` for a layer of so many outputs.

    The tiles of 256 samples then occupy the GPU. A sample's bits depend on the shares, which
    therefore do not depend on the number of samples. VGG-16's 25088 -> 4096 layer takes 84 us in
    four shares and 111 us in one, whose 128 tiles are bound by the L2 cache (H200, 2026-11-21).
    """
    if keeps_weight((outputs, terms), dtype, precision):
        tiles = triton.cdiv(outputs, COLUMNS)
    elif dtype == torch.bfloat16 and terms > WIDE and device.capability()[0] == 9:
        tiles = 2 * triton.cdiv(outputs, 256)
    else:
        return 1
    wanted = max(1, device.num_sms() // tiles)
    return triton.cdiv(terms, share_of(terms, wanted))


@costing(cost.forward)
def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, *, precision: str,
    relu: bool = False, dropout_p: float = 0.0, seed: Tensor | None = None, op_id: int = 0,
    first_sample: int = 0, out_precision: str | None = None, partials: Tensor | None = None,
) -> None:  # fmt: skip
    """y [N, O] = x [N, F] weight^T + bias, with weight [O, F] in x's dtype and bias float32 [O].

    Then ReLU where `relu`, and `dropout` where dropout_p > 0, with the bits of separate ops.
    `precision` is "ieee" or "tf32", for float32. `out_precision` is the precision of the products
    that read y, by default the same. `partials`, float32 [N, `linear_shares`, O], are a workspace.
    A TF32 weight need not be rounded where `keeps_weight` holds.
    """
    if x.shape[0] == 0:
        return
    last_precision = out_precision or precision
    product_precision = "ieee" if dropout_p > 0.0 else last_precision
    epilogue = LinearEpilogue(bias=bias, relu=relu, out_precision=product_precision)
    if suits_weight(x, weight, precision):
        multiply_weight(x, weight, partials, y, epilogue, by_k=False)
    elif partials is None:
        multiply(Product(x, weight, False, False, precision), y, epilogue)
    else:
        group = share_of(x.shape[1], partials.shape[1])
        multiply_split(Product(x, weight, False, False, precision, group), partials, y, epilogue)
    if dropout_p > 0.0:
        assert seed is not None
        # A launch of its own. Philox gives four words a call, of which a thread of the product
        # would use one: the 1M elements of VGG-16's fc6 would take four times the calls.
        place = {"op_id": op_id, "first_sample": first_sample}
        dropout(y, y, seed, p=dropout_p, precision=last_precision, **place)


@costing(cost.grad_input)
def linear_grad_input(
    dy: Tensor, weight: Tensor, dx: Tensor, *, precision: str, mask: Tensor | None = None,
    scale: float = 1.0, out_precision: str | None = None, partials: Tensor | None = None,
) -> None:  # fmt: skip
    """dx [N, F] = dy [N, O] weight, with weight [O, F] in dy's dtype.

    `mask` [N, F] is the output of a ReLU, or of dropout after a ReLU. With it dx, rounded to its
    type, is multiplied by `scale`, and is 0 where the mask is neither above zero nor NaN.
    `out_precision` and `partials`, float32 [N, `linear_shares`, F], are those of `linear`.
    """
    if dy.shape[0] == 0:
        return
    epilogue = LinearEpilogue(mask=mask, scale=scale, out_precision=out_precision or precision)
    if suits_weight(dy, weight, precision):
        multiply_weight(dy, weight, partials, dx, epilogue, by_k=True)
    elif suits_width(dy, weight):
        multiply_wide(dy, weight, dx, epilogue)
    else:
        multiply(Product(dy, weight, False, True, precision), dx, epilogue)


@costing(cost.grad_weight)
def linear_grad_weight(
    x: Tensor, dy: Tensor, partials: Tensor, *, group: int, precision: str,
    transposed: Transposed | None = None,
) -> None:  # fmt: skip
    """partials[g] = dy^T x over samples [g * group, (g + 1) * group), float32 [G, O, F].

    With one group `partials` may be the gradient [O, F] itself. `transposed`, where
    `needs_transposed` holds, are workspaces [F, N] and [O, N] of the dtype of x and dy.
    """
    if x.shape[0] == 0:
        return
    if transposed is not None:
        multiply(transposed_product(x, dy, transposed, precision), partials, LinearEpilogue())
    elif x.shape[0] <= group and suits_residence(x, dy):
        grad = partials.view(-1, dy.shape[1], x.shape[1])[0]
        gradient = tma_store_gradient if suits_tma_store(grad) else resident_gradient
        gradient(x, dy, grad)
    else:
        multiply(Product(dy, x, True, True, precision, group), partials, LinearEpilogue())


def linear_grad_bias(dy: Tensor, partials: Tensor, *, group: int) -> None:
    """partials[g] = the sum of dy over samples [g * group, (g + 1) * group), float32 [G, O]."""
    sum_rows(dy, partials.view(-1, dy.shape[1]), group=group)


def _wide(tensor: Tensor) -> Tensor:
    """float32 on the CPU; on a GPU the tensor's dtype, which cuBLAS sums in float32."""
    return tensor if tensor.is_cuda else tensor.float()


def linear_reference(
    x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, *, precision: str,
    relu: bool = False, dropout_p: float = 0.0, seed: Tensor | None = None, op_id: int = 0,
    first_sample: int = 0, out_precision: str | None = None, partials: Tensor | None = None,
) -> None:  # fmt: skip
    """Computes `linear` in torch. The precision of products is torch's setting."""
    weight = stored_reference(weight, weight.dtype, precision)
    product = functional.linear(_wide(x), _wide(weight)).float()
    wide = product if bias is None else product + bias
    last_precision = out_precision or precision
    y.copy_(stored_reference(wide, y.dtype, "ieee" if dropout_p > 0.0 else last_precision))
    if relu:
        y.copy_(rectified_reference(y))
    if dropout_p > 0.0:
        assert seed is not None
        place = {"op_id": op_id, "first_sample": first_sample}
        dropout_reference(y, y, seed, p=dropout_p, precision=last_precision, **place)


def linear_grad_input_reference(
    dy: Tensor, weight: Tensor, dx: Tensor, *, precision: str, mask: Tensor | None = None,
    scale: float = 1.0, out_precision: str | None = None, partials: Tensor | None = None,
) -> None:  # fmt: skip
    """Computes `linear_grad_input` in torch. The precision of products is torch's setting."""
    weight = stored_reference(weight, weight.dtype, precision)
    product = (_wide(dy) @ _wide(weight)).to(dx.dtype)
    if mask is not None:
        product = (product.float() * scale).masked_fill(mask <= 0, 0.0)
    dx.copy_(stored_reference(product, dx.dtype, out_precision or precision))


def linear_grad_weight_reference(
    x: Tensor, dy: Tensor, partials: Tensor, *, group: int, precision: str,
    transposed: Transposed | None = None,
) -> None:  # fmt: skip
    """Computes `linear_grad_weight` in torch. The precision of products is torch's setting."""
    shares = partials.view(-1, dy.shape[1], x.shape[1])
    groups = zip(x.split(group), dy.split(group), strict=True)
    for share, (inputs, gradients) in zip(shares, groups, strict=False):
        share.copy_(gradients.float().T @ inputs.float())


def linear_grad_bias_reference(dy: Tensor, partials: Tensor, *, group: int) -> None:
    """Computes `linear_grad_bias` in torch."""
    sum_rows_reference(dy, partials.view(-1, dy.shape[1]), group=group)
