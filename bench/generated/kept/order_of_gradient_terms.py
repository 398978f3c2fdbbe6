# h + (h + bn(h)): vdnn-all differs from keep in the last bits
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(4, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)

    def forward(self, x):
        h = self.a(x)
        return h + (h + self.bn(h))


INPUTS = {"x": (3, 4, 6, 6)}
SETTINGS = {"policy": "vdnn-all", "sections": 2}
