"""Passes of a fully connected layer: its output, and the gradients of input, weight and bias."""

import torch
from torch import Tensor
from torch.nn import functional

from .dropout import dropout, dropout_reference
from .linear_product import Product, multiply
from .linear_resident import resident_gradient, suits_residence
from .reduce import sum_rows, sum_rows_reference
from .rounding import stored_reference


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, *, precision: str,
    relu: bool = False, dropout_p: float = 0.0, seed: Tensor | None = None, op_id: int = 0,
    first_sample: int = 0, out_precision: str | None = None,
) -> None:  # fmt: skip
    """y [N, O] = x [N, F] weight^T + bias; weight [O, F] in x's dtype, bias float32 [O].

    Then ReLU, where asked for, and `dropout` with probability `dropout_p` by the seed and place
    given, each with the bits of a pass of its own. `out_precision` is that of the products which
    read y, by default the same.
    """
    if x.shape[0] == 0:
        return
    multiply(
        Product(x, weight, False, False, precision), y, bias=bias, relu=relu,
        out_precision=out_precision or precision,
    )  # fmt: skip
    if dropout_p > 0.0:
        assert seed is not None
        # By itself: in the product, where a thread holds one of the four words that Philox draws
        # at once, the 1M elements of VGG-16's fc6 take four times the draws.
        place = {"op_id": op_id, "first_sample": first_sample}
        dropout(y, y, seed, p=dropout_p, precision=out_precision or precision, **place)


def linear_grad_input(
    dy: Tensor, weight: Tensor, dx: Tensor, *, precision: str, mask: Tensor | None = None,
    scale: float = 1.0,
) -> None:  # fmt: skip
    """dx [N, F] = dy [N, O] weight; weight [O, F] in dy's dtype.

    With `mask` [N, F], the output of a ReLU or of dropout after one: dx is rounded, multiplied by
    `scale` and rounded again, and 0 where the mask is not above zero (or NaN).
    """
    if dy.shape[0] == 0:
        return
    product = Product(dy, weight, False, True, precision)
    multiply(product, dx, mask=mask, scale=scale, out_precision=precision)


def linear_grad_weight(
    x: Tensor, dy: Tensor, partials: Tensor, *, group: int, precision: str
) -> None:
    """partials[g] = dy^T x over samples [g * group, (g + 1) * group): float32 [G, O, F], from zero.

    With one group `partials` may be the gradient [O, F] itself.
    """
    if x.shape[0] == 0:
        return
    if x.shape[0] <= group and suits_residence(x, dy):
        resident_gradient(x, dy, partials)
    else:
        multiply(Product(dy, x, True, True, precision, group), partials)


def linear_grad_bias(dy: Tensor, partials: Tensor, *, group: int) -> None:
    """partials[g] = sum of dy over samples [g * group, (g + 1) * group): float32 [G, O]."""
    sum_rows(dy, partials.view(-1, dy.shape[1]), group=group)


def _wide(tensor: Tensor) -> Tensor:
    """float32 on the CPU; on a GPU the tensor's dtype, which cuBLAS sums in float32."""
    return tensor if tensor.is_cuda else tensor.float()


def linear_reference(
    x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, *, precision: str,
    relu: bool = False, dropout_p: float = 0.0, seed: Tensor | None = None, op_id: int = 0,
    first_sample: int = 0, out_precision: str | None = None,
) -> None:  # fmt: skip
    """What `linear` computes; `precision` is torch's own setting."""
    product = functional.linear(_wide(x), _wide(weight)).float()
    wide = product if bias is None else product + bias
    y.copy_(stored_reference(wide, y.dtype, out_precision or precision))
    if relu:
        y.copy_(torch.relu(y))
    if dropout_p > 0.0:
        assert seed is not None
        place = {"op_id": op_id, "first_sample": first_sample}
        dropout_reference(y, y, seed, p=dropout_p, precision=out_precision or precision, **place)


def linear_grad_input_reference(
    dy: Tensor, weight: Tensor, dx: Tensor, *, precision: str, mask: Tensor | None = None,
    scale: float = 1.0,
) -> None:  # fmt: skip
    """What `linear_grad_input` computes; `precision` is torch's own setting."""
    dx.copy_(stored_reference(_wide(dy) @ _wide(weight), dx.dtype, precision))
    if mask is not None:
        scaled = stored_reference(dx.float() * scale, dx.dtype, precision)
        dx.copy_(scaled.masked_fill(mask <= 0, 0.0))


def linear_grad_weight_reference(
    x: Tensor, dy: Tensor, partials: Tensor, *, group: int, precision: str
) -> None:
    """What `linear_grad_weight` computes; `precision` is torch's own setting."""
    shares = partials.view(-1, dy.shape[1], x.shape[1])
    groups = zip(x.split(group), dy.split(group), strict=True)
    for share, (inputs, gradients) in zip(shares, groups, strict=False):
        share.copy_(gradients.float().T @ inputs.float())


def linear_grad_bias_reference(dy: Tensor, partials: Tensor, *, group: int) -> None:
    """What `linear_grad_bias` computes."""
    sum_rows_reference(dy, partials.view(-1, dy.shape[1]), group=group)
