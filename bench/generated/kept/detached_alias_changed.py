# v4 = v3.detach(); v3 *= 2: v4 must change, too
import torch
import tvdnn
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv0 = nn.Conv2d(1, 1, 1)

    def forward(self, x):
        v3 = self.conv0(x)
        v4 = v3.detach()
        v3 *= 2
        v5 = torch.cat([v3, v4], 1)
        return v5


def make():
    net = Net().train()
    return net


INPUTS = {"x": (1, 1, 1, 1)}
GRADS = []
SETTINGS = {'policy': 'vdnn-all'}
