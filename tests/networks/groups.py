"""Networks of convolutions in groups, whose weights are packed by bands of input channels."""

from torch import nn

from tests.networks.case import EXACT, HALF, TENSOR, NetworkCase, Run


def conv(channels: int, width: int, out: int = 0, **settings: int) -> nn.Conv2d:
    """A convolution 3x3 in groups of `width` input channels."""
    return nn.Conv2d(channels, out or channels, 3, padding=1, groups=channels // width, **settings)


def blocks() -> nn.Sequential:
    """Groups of 4 behind a ReLU, of 8 with normalization, of 16 at stride 2, and pooled."""
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), conv(32, 4), nn.ReLU()),
        *(conv(32, 8, bias=False), nn.BatchNorm2d(32), nn.ReLU()),
        *(conv(32, 16, 64, stride=2), nn.ReLU(), conv(64, 4), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 4)),
    )


def transposed() -> nn.Sequential:
    """Groups of 2, 4 to 8 and 24, forward as a data gradient."""
    return nn.Sequential(
        *(nn.Conv2d(3, 48, 3, stride=2), nn.ReLU()),
        *(nn.ConvTranspose2d(48, 48, 2, stride=2, groups=24), nn.ReLU()),
        *(nn.ConvTranspose2d(48, 96, 3, padding=1, groups=12, bias=False), nn.ReLU()),
        *(conv(96, 24, 48, dilation=1), nn.AdaptiveAvgPool2d(2), nn.Flatten()),
        nn.Linear(192, 4),
    )


def wide() -> nn.Sequential:
    """Groups of 40 with normalization, at stride 2, of 72 behind a ReLU, and pooled."""
    return nn.Sequential(
        *(nn.Conv2d(3, 80, 1, bias=False), nn.BatchNorm2d(80), nn.ReLU()),
        *(conv(80, 40, bias=False), nn.BatchNorm2d(80), nn.ReLU(), conv(80, 40, 144, stride=2)),
        *(nn.ReLU(), conv(144, 72), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(144, 4)),
    )


NETWORKS = {
    "blocks": NetworkCase(
        blocks, (3, 8, 6), chunk_size=1200, runs=(EXACT, HALF, TENSOR, Run("bf16", "triton", 2, 1))
    ),
    "transposed": NetworkCase(transposed, (3, 7, 6), chunk_size=1200, runs=(EXACT, TENSOR)),
    "wide": NetworkCase(
        wide, (3, 6, 4), chunk_size=1200, runs=(EXACT, HALF, TENSOR, Run("bf16", "triton", 2, 1))
    ),
}
