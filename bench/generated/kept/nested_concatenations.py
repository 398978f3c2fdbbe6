# cat([f, h]) read by bn, then cat([f, h, k]) + skip
import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Conv2d(4, 4, 1)
        self.h = nn.Conv2d(4, 4, 1)
        self.k = nn.Conv2d(8, 4, 1)
        self.skip = nn.Conv2d(4, 12, 1)
        self.bn = nn.BatchNorm2d(8)

    def forward(self, x):
        f = self.f(x)
        h = self.h(x)
        k = self.k(F.relu(self.bn(torch.cat([f, h], 1))))
        return torch.cat([f, h, k], 1) + self.skip(x)


INPUTS = {"x": (3, 4, 6, 6)}
SETTINGS = {"policy": "vdnn-all", "sections": 2}
