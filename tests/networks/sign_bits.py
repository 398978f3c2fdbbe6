"""Residual networks whose last gradient terms come masked by signs."""

from torch import Tensor, nn

from tests.networks.case import HALF, TENSOR, NetworkCase

CLASSES = 4


class Bottleneck(nn.Module):
    """ResNet's block of three layers, its shortcut a layer where there is one."""

    def __init__(self, channels: int, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.narrow, self.first = nn.Conv2d(channels, 64, 1, bias=False), nn.BatchNorm2d(64)
        self.wide, self.last = nn.Conv2d(64, 128, 1, bias=False), nn.BatchNorm2d(128)
        self.shortcut = nn.Identity() if shortcut is None else shortcut

    def forward(self, x: Tensor) -> Tensor:
        y = self.last(self.wide(self.first(self.narrow(x)).relu()))
        return (y + self.shortcut(x)).relu()


def residual() -> nn.Sequential:
    shortcuts = (nn.Conv2d(3, 128, 1, bias=False), None, nn.Conv2d(128, 128, 1), None)
    blocks = (Bottleneck(3 if i == 0 else 128, each) for i, each in enumerate(shortcuts))
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, CLASSES))


NETWORKS = {
    "residual": NetworkCase(
        residual,
        (3, 4, 4),
        chunk_size=8192,  # of a map of 128 bfloat16 channels two samples
        runs=(HALF, TENSOR),
        atol=3e-5,
    ),
}
