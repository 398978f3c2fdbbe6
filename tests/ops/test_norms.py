"""Networks of normalizations and permuted maps: the bits of keep in any plan, torch's gradients."""

import copy

import torch
from torch import Tensor, nn

from tvdnn.engine import virtualize


class Permuting(nn.Module):
    """Returns maps whose channels are last, and as they are otherwise turned."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 1)
        self.norm = nn.LayerNorm(5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        last = self.norm(torch.permute(self.conv(x), (0, 2, 3, 1)))
        return last, last.transpose(1, 3).relu()


def test_permuted_outputs_are_torchs() -> None:
    torch.manual_seed(8)
    net, x = Permuting(), torch.randn(3, 3, 4, 5)
    virtual = virtualize(copy.deepcopy(net), x, policy="keep", dtype="fp32")
    ours, exact = virtual(x), net(x)
    weights = [torch.randn_like(y) for y in exact]
    for each, own in ((ours, virtual), (exact, net)):
        sum((y * weight).sum() for y, weight in zip(each, weights, strict=True)).backward()
        assert own is not None
    for mine, theirs in zip(ours, exact, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
    for mine, theirs in zip(virtual.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-6)
