"""Networks that draw random numbers for each sample: the same forward and backward."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.networks.case import EXACT, HALF, LEAST, MOVED, STORED, TENSOR, NetworkCase, Run


class Autoencoder(nn.Module):
    """A variational one (Kingma and Welling, 2013) with noise on its maps (StyleGAN's)."""

    def __init__(self) -> None:
        super().__init__()
        self.inward = nn.Conv2d(3, 8, 3, padding=1)
        self.mean, self.spread = nn.Linear(8, 4), nn.Linear(8, 4)
        self.outward = nn.Linear(4, 8)
        self.strength = nn.Parameter(torch.full((8, 1, 1), 0.3))
        self.last = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        maps = torch.relu(self.inward(x))
        noise = torch.randn(len(x), 1, *x.shape[2:], device=x.device)
        maps = maps + self.strength * noise
        means = maps.mean((2, 3))
        mean, spread = self.mean(means), torch.exp(0.5 * self.spread(means))
        latent = mean + torch.randn_like(spread) * spread
        return self.last(maps * torch.sigmoid(self.outward(latent))[:, :, None, None]).mean((2, 3))


class Drops(nn.Module):
    """Elements, blocks and samples dropped by hand, shaken branches, a relaxed choice."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(4, 4, 3, padding=1) for _ in range(4))
        self.head = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        first, second, third, last = self.convs
        x = first(x) * ((torch.rand_like(x) < 0.7).to(x.dtype) / 0.7)
        starts = x.new_empty(len(x), 1, *x.shape[2:]).bernoulli_(0.1)
        x = torch.relu(second(x)) * (1 - functional.max_pool2d(starts, 3, 1, 1))
        share = torch.rand(len(x), 1, 1, 1, device=x.device)
        x = share * third(x) + (1 - share) * x.tanh()
        x = last(x * (1 + 0.1 * torch.zeros_like(x).normal_(0, 0.5)))
        return self.head(functional.gumbel_softmax(x, tau=0.7, dim=1).mean((2, 3)))


RUNS = (EXACT, HALF, TENSOR, Run("bf16", "triton"))
POLICIES = (MOVED, STORED, LEAST)
NETWORKS = {
    "autoencoder": NetworkCase(
        Autoencoder, (3, 6, 6), runs=RUNS, policies=POLICIES, gradients=False
    ),
    "drops": NetworkCase(Drops, (4, 5, 5), runs=RUNS, policies=POLICIES, gradients=False),
}
