# self.n += 1 in forward
import torch
import tvdnn
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(4, 4, 1)
        self.n = nn.Buffer(torch.zeros(1))

    def forward(self, x):
        self.n += 1
        return self.a(x)


def make():
    net = Net().train()
    return net


INPUTS = {"x": (3, 4, 6, 6)}
GRADS = []
SETTINGS = {"policy": "vdnn-all", "sections": 2}
