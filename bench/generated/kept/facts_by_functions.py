# torch.numel and torch.is_floating_point of a map
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
        v1 = v0 * (1 / torch.numel(v0))
        return v1 * torch.is_floating_point(v1)


def make():
    net = Net().train()
    return net


INPUTS = {"x": (3, 4, 6, 6)}
GRADS = []
SETTINGS = {"policy": "vdnn-all", "sections": 2}
