"""Networks of transposed convolutions."""

from torch import nn

from tests.networks.case import EXACT, HALF, MOVED, NetworkCase


def transposed() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 3, stride=2), nn.ReLU()),
        *(nn.ConvTranspose2d(6, 8, 2, stride=2, output_padding=1), nn.ReLU()),
        *(nn.ConvTranspose2d(8, 4, 3, padding=1, groups=2, bias=False), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 4)),
    )


POLICIES = (MOVED, {"policy": "auto"})
NETWORKS = {
    "transposed": NetworkCase(
        transposed, (3, 6, 5), chunk_size=1200, runs=(EXACT, HALF), policies=POLICIES
    ),
}
