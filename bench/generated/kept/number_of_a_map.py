# a number that a call on maps yields: refused, no foreign exception
import torch
import tvdnn
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(4, 4, 1)

    def forward(self, x):
        v0 = self.a(x)
        return v0 * (1 + v0.get_device())


def make():
    net = Net().train()
    return net


INPUTS = {"x": (3, 4, 6, 6)}
GRADS = []
SETTINGS = {"policy": "vdnn-all", "sections": 2}
