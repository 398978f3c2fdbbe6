"""Networks of every activation function."""

from torch import nn

from tests.networks.case import EXACT, HALF, NetworkCase, Run
from tests.support.networks import activations


def every_function() -> nn.Sequential:
    """Each function behind a convolution, which it may overwrite, and one behind the input."""
    blocks = [layer for each in activations() for layer in (nn.Conv2d(4, 4, 3, padding=1), each)]
    return nn.Sequential(nn.SiLU(), nn.Conv2d(3, 4, 1), *blocks, nn.Flatten(), nn.Linear(64, 4))


INTERPRETED = Run("tf32", "triton", samples=2, steps=1)
NETWORKS = {
    "every function": NetworkCase(
        every_function, (3, 4, 4), chunk_size=300, runs=(EXACT, HALF, INTERPRETED)
    ),
}
