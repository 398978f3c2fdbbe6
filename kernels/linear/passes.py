"""Passes of a fully connected layer: its output, and the gradients of input, weight and bias."""

import torch
import triton
from torch import Tensor
from torch.nn import functional

from ..language import device
from ..language.cost import costing
from ..language.rounding import stored_reference
from ..pointwise.dropout import dropout, dropout_reference
from ..reduce.partials import sum_rows, sum_rows_reference
from . import cost
from .gemm import WIDE, Ending, Product, multiply, multiply_split, share_of
from .grad_weight_resident import resident_gradient, suits_residence
from .grad_weight_tma_store import streamed_gradient, streams
from .tf32_weight import COLUMNS, keeps_weight, multiply_weight, suits_weight
from .transpose import Turned, turned_product
from .wide_tiles import multiply_wide, suits_width


def linear_shares(outputs: int, terms: int, dtype: torch.dtype, precision: str) -> int:
    """Into how many shares the sum of `terms` is cut for so many outputs a sample.

    So many that the tiles of 256 samples occupy the GPU: a sample's bits depend on it, and so it
    does not depend on the samples. VGG-16's 25088 -> 4096 layer takes 84 us in four shares, 111
    in one, which is 128 tiles too small for the rate of the L2 cache (H200, 2026-11-21).
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
    """y [N, O] = x [N, F] weight^T + bias; weight [O, F] in x's dtype, bias float32 [O].

    Then ReLU, where asked for, and `dropout` with probability `dropout_p` by the seed and place
    given, each with the bits of a pass of its own. `out_precision` is that of the products which
    read what leaves, by default the same. `partials` float32 [N, shares, O] holds sums of
    `linear_shares`. A weight that `keeps_weight` speaks of may come as it is kept, not rounded.
    """
    if x.shape[0] == 0:
        return
    left_as = out_precision or precision
    ending = Ending(bias=bias, relu=relu, out_precision="ieee" if dropout_p > 0.0 else left_as)
    if suits_weight(x, weight, precision):
        multiply_weight(x, weight, partials, y, ending, by_k=False)
    elif partials is None:
        multiply(Product(x, weight, False, False, precision), y, ending)
    else:
        group = share_of(x.shape[1], partials.shape[1])
        multiply_split(Product(x, weight, False, False, precision, group), partials, y, ending)
    if dropout_p > 0.0:
        assert seed is not None
        # By itself: in the product, where a thread holds one of the four words that Philox draws
        # at once, the 1M elements of VGG-16's fc6 take four times the draws.
        place = {"op_id": op_id, "first_sample": first_sample}
        dropout(y, y, seed, p=dropout_p, precision=left_as, **place)


@costing(cost.grad_input)
def linear_grad_input(
    dy: Tensor, weight: Tensor, dx: Tensor, *, precision: str, mask: Tensor | None = None,
    scale: float = 1.0, out_precision: str | None = None, partials: Tensor | None = None,
) -> None:  # fmt: skip
    """dx [N, F] = dy [N, O] weight; weight [O, F] in dy's dtype.

    With `mask` [N, F], the output of a ReLU or of dropout after one: what a map of dx's type holds
    of it is multiplied by `scale`, and 0 where the mask is not above zero (or NaN). `out_precision`
    is as for `linear`; `partials` float32 [N, shares, F] holds sums of `linear_shares`.
    """
    if dy.shape[0] == 0:
        return
    ending = Ending(mask=mask, scale=scale, out_precision=out_precision or precision)
    if suits_weight(dy, weight, precision):
        multiply_weight(dy, weight, partials, dx, ending, by_k=True)
    elif suits_width(dy, weight):
        multiply_wide(dy, weight, dx, ending)
    else:
        multiply(Product(dy, weight, False, True, precision), dx, ending)


@costing(cost.grad_weight)
def linear_grad_weight(
    x: Tensor, dy: Tensor, partials: Tensor, *, group: int, precision: str,
    turned: Turned | None = None,
) -> None:  # fmt: skip
    """partials[g] = dy^T x over samples [g * group, (g + 1) * group): float32 [G, O, F], from zero.

    With one group `partials` may be the gradient [O, F] itself, and `turned` hold x and dy turned,
    [F, N] and [O, N], where `turns` says so.
    """
    if x.shape[0] == 0:
        return
    if turned is not None:
        multiply(turned_product(x, dy, turned, precision), partials, Ending())
    elif x.shape[0] <= group and suits_residence(x, dy):
        grad = partials.view(-1, dy.shape[1], x.shape[1])[0]
        gradient = streamed_gradient if streams(grad) else resident_gradient
        gradient(x, dy, grad)
    else:
        multiply(Product(dy, x, True, True, precision, group), partials, Ending())


def linear_grad_bias(dy: Tensor, partials: Tensor, *, group: int) -> None:
    """partials[g] = sum of dy over samples [g * group, (g + 1) * group): float32 [G, O]."""
    sum_rows(dy, partials.view(-1, dy.shape[1]), group=group)


def _wide(tensor: Tensor) -> Tensor:
    """float32 on the CPU; on a GPU the tensor's dtype, which cuBLAS sums in float32."""
    return tensor if tensor.is_cuda else tensor.float()


def linear_reference(
    x: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor, *, precision: str,
    relu: bool = False, dropout_p: float = 0.0, seed: Tensor | None = None, op_id: int = 0,
    first_sample: int = 0, out_precision: str | None = None, partials: Tensor | None = None,
) -> None:  # fmt: skip
    """What `linear` computes; `precision` is torch's own setting."""
    weight = stored_reference(weight, weight.dtype, precision)
    product = functional.linear(_wide(x), _wide(weight)).float()
    wide = product if bias is None else product + bias
    left_as = out_precision or precision
    y.copy_(stored_reference(wide, y.dtype, "ieee" if dropout_p > 0.0 else left_as))
    if relu:
        y.copy_(torch.relu(y))
    if dropout_p > 0.0:
        assert seed is not None
        place = {"op_id": op_id, "first_sample": first_sample}
        dropout_reference(y, y, seed, p=dropout_p, precision=left_as, **place)


def linear_grad_input_reference(
    dy: Tensor, weight: Tensor, dx: Tensor, *, precision: str, mask: Tensor | None = None,
    scale: float = 1.0, out_precision: str | None = None, partials: Tensor | None = None,
) -> None:  # fmt: skip
    """What `linear_grad_input` computes; `precision` is torch's own setting."""
    weight = stored_reference(weight, weight.dtype, precision)
    product = (_wide(dy) @ _wide(weight)).to(dx.dtype)
    if mask is not None:
        product = (product.float() * scale).masked_fill(mask <= 0, 0.0)
    dx.copy_(stored_reference(product, dx.dtype, out_precision or precision))


def linear_grad_weight_reference(
    x: Tensor, dy: Tensor, partials: Tensor, *, group: int, precision: str,
    turned: Turned | None = None,
) -> None:  # fmt: skip
    """What `linear_grad_weight` computes; `precision` is torch's own setting."""
    shares = partials.view(-1, dy.shape[1], x.shape[1])
    groups = zip(x.split(group), dy.split(group), strict=True)
    for share, (inputs, gradients) in zip(shares, groups, strict=False):
        share.copy_(gradients.float().T @ inputs.float())


def linear_grad_bias_reference(dy: Tensor, partials: Tensor, *, group: int) -> None:
    """What `linear_grad_bias` computes."""
    sum_rows_reference(dy, partials.view(-1, dy.shape[1]), group=group)
