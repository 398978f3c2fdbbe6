"""Networks over rows [N, C, L], and adaptive maxima: gradients as torch's, the bits of keep."""

import pytest
import torch
from torch import nn

from tvdnn.engine import virtualize
from tvdnn.errors import InputError
from tvdnn.trace.trace import trace


def test_rows_are_returned() -> None:
    torch.manual_seed(1)
    net, x = nn.Sequential(nn.Conv1d(3, 4, 3), nn.Tanh()), torch.randn(2, 3, 24)
    virtual = virtualize(net, x, policy="keep", dtype="fp32")
    torch.testing.assert_close(virtual(x), net(x))


@pytest.mark.parametrize("layer", [nn.Conv2d(3, 4, 3), nn.MaxPool2d(2)])
def test_an_image_without_a_batch_is_named(layer: nn.Module) -> None:
    with pytest.raises(InputError, match=r"input input of shape \(3, 8, 8\) has no batch; pass"):
        trace(layer, [torch.empty(3, 8, 8)])
