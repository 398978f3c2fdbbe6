# seed 109, fp32: right:
import torch
import tvdnn
from torch import nn
from torch.nn import functional as F


from collections import namedtuple

Pair = namedtuple("Pair", "first second")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.own0 = nn.Parameter(torch.randn(2, 1, 1))
        self.own1 = nn.Parameter(torch.randn(2, 1, 1))
        self.own2 = nn.Parameter(torch.randn(2, 1, 1))
        self.own3 = nn.Parameter(torch.randn(2, 1, 1))
        self.own4 = nn.Parameter(torch.randn(2, 1, 1))
        self.own5 = nn.Parameter(torch.randn(2, 1, 1))
        self.own6 = nn.Parameter(torch.randn(2, 1, 1))
        self.own7 = nn.Parameter(torch.randn(2, 1, 1))

    def forward(self, x):
        v0 = x * self.own0.to(self.own0.device)
        v1 = x * self.own1.to(self.own1.device)
        v2 = x * self.own2.to(self.own2.device)
        v3 = v0 * (self.own3 * torch.full((2, 1, 1), 0.5))
        v4 = v1 + self.own4 * torch.ones(2, 1, 1)
        v5 = v2 * (self.own5 * torch.full((2, 1, 1), 0.5))
        v6 = v4 * (self.own6 * torch.full((2, 1, 1), 0.5))
        v7 = v6 + self.own7 * torch.ones(2, 1, 1)
        return Pair(v7, v5)


def make():
    net = Net().train()
    return net


INPUTS = {"x": (1, 2, 13, 13)}
GRADS = []
SETTINGS = {"policy": "vdnn-dyn", "budget": 0.0, "evaluates": True}
