"""Networks of elementwise functions with numbers, and of PReLU."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.networks.case import EXACT, HALF, LEAST, NetworkCase

SHAPE, CLASSES = (4, 4, 4), 4


class Functions(nn.Module):
    """Every function, method and in-place form that takes a map and numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.wide = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 8, 1)
        self.slopes = nn.Parameter(torch.rand(4))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.prelu(self.conv(x), self.slopes)
        size = abs(y).add_(0.5)
        roots = size.sqrt() + torch.rsqrt(size) + torch.log(size)
        powers = y.square() + y**3 - torch.pow(size, 1.5) + size**-1 + 2 / size
        y = torch.clamp(roots, -1, 1.5) + powers.clip(max=2) + torch.exp(-size).reciprocal()
        y = functional.glu(self.wide(functional.threshold(y, 0.3, 0.2)), 1)
        y = y + torch.sin(2 * y).square() * y.cos()
        return y.clamp_min(-0.2).clamp_(max=3).sigmoid().pow(2).exp_()


def every_function() -> nn.Sequential:
    """PReLUs behind convolutions, then the functions."""
    blocks = [nn.Conv2d(4, 4, 1), nn.PReLU(), nn.Conv2d(4, 4, 1), nn.PReLU(4, init=0.1)]
    return nn.Sequential(*blocks, Functions(), nn.Flatten(), nn.Linear(64, CLASSES))


def two_functions() -> nn.Sequential:
    layers = (nn.Conv2d(4, 4, 1), nn.Mish(), nn.PReLU(4))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, CLASSES))


NETWORKS = {
    "every function": NetworkCase(every_function, SHAPE, chunk_size=300, runs=(EXACT, HALF)),
    "two functions": NetworkCase(
        two_functions, SHAPE, chunk_size=1200, runs=(EXACT,), policies=(LEAST,)
    ),
}
