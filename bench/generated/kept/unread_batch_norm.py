# statistics of a batch normalization that nothing reads
import torch
import tvdnn
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(4, 4, 1)
        self.bn = nn.BatchNorm2d(4)

    def forward(self, x):
        h = self.a(x)
        u = self.bn(h)
        return h


def make():
    net = Net().train()
    return net


INPUTS = {"x": (3, 4, 6, 6)}
GRADS = []
SETTINGS = {"policy": "vdnn-all", "sections": 2}
