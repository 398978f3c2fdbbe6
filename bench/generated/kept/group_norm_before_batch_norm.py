# GroupNorm before BatchNorm: two buffers of one name
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gn = nn.GroupNorm(2, 4)
        self.bn = nn.BatchNorm2d(4)
        self.a = nn.Conv2d(4, 4, 1)

    def forward(self, x):
        return self.bn(self.gn(self.a(x)))


INPUTS = {"x": (3, 4, 6, 6)}
SETTINGS = {"policy": "vdnn-all", "sections": 2}
