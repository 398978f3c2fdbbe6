# A gradient of two terms, one through a view of other channels, was taken for another value's.
import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 1)
        self.bn = nn.BatchNorm2d(8)

    def forward(self, x):
        h = self.conv(x)
        s = self.bn(h) + torch.tanh(h)
        return s * h, F.pixel_shuffle(s, 2)


INPUTS = {"x": (3, 4, 5, 2)}
SETTINGS = {"policy": "vdnn-all"}
