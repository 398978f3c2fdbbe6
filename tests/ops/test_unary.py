"""Networks of elementwise functions and PReLU: gradients as torch's, the bits of keep."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.support.exact import Functional
from tvdnn.errors import UnsupportedOpError
from tvdnn.trace.trace import trace

CONSTANT = torch.ones(4)  # made outside of a network


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: (-2) ** x, "pow of -2 with a tensor as exponent"),
        (lambda x: x.pow(x), "pow of a tensor with a tensor as exponent"),
        (lambda x: torch.clamp(x, x), "clamp with a tensor where it takes a number"),
        (lambda x: functional.prelu(x, CONSTANT), "prelu with a weight .* not a parameter"),
    ],
)
def test_what_hangs_on_tensors_is_refused(
    function: Callable[[Tensor], Tensor], message: str
) -> None:
    net = Functional(lambda net, x: function(net.conv(x)), conv=nn.Conv2d(4, 4, 1))
    with pytest.raises(UnsupportedOpError, match=message):
        trace(net, [torch.empty(2, 4, 4, 4)])
