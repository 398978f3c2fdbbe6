# forward returns a list
import torch
import tvdnn
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv0 = nn.Conv2d(6, 3, 1)

    def forward(self, x):
        v0 = self.conv0(x)
        return [v0]


def make():
    net = Net().train()
    return net


INPUTS = {"x": (2, 6, 6, 6)}
GRADS = ['x']
SETTINGS = {'policy': 'vdnn-conv', 'sections': 2}
