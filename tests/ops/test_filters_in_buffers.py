"""Convolutions whose filters are buffers: gradients as torch's, the bits of keep, refusals."""

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.networks.filters_in_buffers import Filters
from tests.support.computed_networks import seeded
from tvdnn import virtualize
from tvdnn.errors import InputError
from tvdnn.trace.trace import trace

BATCH, SHAPE, CLASSES = 5, (3, 8, 10), 4
CHUNK_SIZE = 900  # bytes


@pytest.mark.parametrize("kernels", ["torch", "triton"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "tf32"])
def test_buffers_in_bfloat16_count_as_their_values(dtype: str, kernels: str) -> None:
    x = torch.randn(2, *SHAPE, generator=torch.Generator().manual_seed(4))
    results = []
    for as_float in (False, True):
        net = seeded(Filters).bfloat16()
        if as_float:
            for name, buffer in list(net.named_buffers()):
                setattr(net, name, buffer.float())
        results.append(virtualize(net, x, policy="keep", dtype=dtype, kernels=kernels)(x))
    assert torch.equal(*results)


class Held(nn.Module):
    """A convolution that trains before one whose filter is `hold` of its weight."""

    def __init__(self, hold: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.register_buffer("filter", hold(self.conv.weight))

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(functional.conv2d(self.conv(x), self.filter))


def test_a_buffer_that_changes_with_a_trained_parameter_is_refused() -> None:
    net = Held(lambda weight: weight.detach())
    with pytest.raises(InputError, match=re.escape("shares the storage of the parameter conv.w")):
        trace(net, [torch.empty(2, *SHAPE)])
    trace(net, [torch.empty(2, *SHAPE)], graded=False)
    net.conv.weight.requires_grad_(False)
    trace(net, [torch.empty(2, *SHAPE)])


def test_a_buffer_that_requires_a_gradient_is_refused() -> None:
    net = Held(lambda weight: weight.detach().clone().requires_grad_())
    with pytest.raises(InputError, match="buffer filter requires a gradient"):
        trace(net, [torch.empty(2, *SHAPE)])
