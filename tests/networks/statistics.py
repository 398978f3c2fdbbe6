"""Networks whose convolutions leave the statistics that batch normalization reads."""

from torch import Tensor, nn

from tests.networks.case import HALF, MOVED, TENSOR, NetworkCase

CLASSES = 4


class Bottleneck(nn.Module):
    """A first layer, and a block whose sides go by boxes and by runs of pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first = nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.narrow, self.second = nn.Conv2d(32, 32, 1, bias=False), nn.BatchNorm2d(32)
        self.conv, self.third = nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32)
        self.wide, self.last = nn.Conv2d(32, 64, 1, 2), nn.BatchNorm2d(64)
        self.plain = nn.Conv2d(64, 64, 1)
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(self.stem(x)).relu()
        x = self.third(self.conv(self.second(self.narrow(x)).relu())) + x
        x = self.plain(self.last(self.wide(x.relu())).relu())
        return self.head(x.mean((2, 3)))


NETWORKS = {
    "bottleneck": NetworkCase(
        Bottleneck,
        (3, 8, 8),
        batch=9,
        chunk_size=16384,  # of a map of 32 bfloat16 channels four samples
        runs=(TENSOR, HALF),
        policies=(MOVED, {"policy": "auto"}),
        atol=3e-5,
    ),
}
