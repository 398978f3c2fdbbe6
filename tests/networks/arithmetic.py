"""Networks that compute with maps: sums, products and quotients of maps and numbers."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.networks.case import EXACT, HALF, TENSOR, NetworkCase

CLASSES = 4


class Excited(nn.Module):
    """Squeeze and excitation (Hu et al. 2018), and every other way to compute with maps."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.squeeze, self.excite = nn.Conv2d(6, 2, 1), nn.Conv2d(2, 6, 1)
        self.shift, self.head = nn.Conv2d(6, 6, 1), nn.Linear(6 * 36, CLASSES)
        self.scale, self.bias = (nn.Parameter(torch.rand(6, 1, 1)) for _ in range(2))
        self.weights, self.levels = nn.Linear(6, CLASSES), nn.Parameter(torch.rand(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x * 0.5 - 0.1)
        pooled = functional.adaptive_avg_pool2d(x, 1)
        gates = torch.sigmoid(self.excite(torch.relu(self.squeeze(pooled))))
        x = gates * x + self.shift(pooled)
        y = self.second(x)
        x = torch.sub(y, x, alpha=0.3) * torch.tanh(y)
        x = x.mul_(2).add_(1)
        x = x - (-x / 3) - y * y
        x = self.bias + torch.softmax(self.scale * (1 - x), 1)
        weights = functional.log_softmax(self.weights(x.mean([2, 3])), 1)
        pooled = x.mean((-2, -1), keepdim=True).squeeze(-1).squeeze(-1)
        pooled = torch.cat([y.mean([2, 3]), pooled], 1)[:, 3:9]
        return self.head(x.flatten(1)) * self.levels + weights * self.weights(pooled)


NETWORKS = {"excited": NetworkCase(Excited, (3, 6, 6), runs=(EXACT, HALF, TENSOR))}
