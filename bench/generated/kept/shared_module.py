# a module registered under two names
import torch
import tvdnn
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Conv2d(4, 4, 3, padding=1)
        self.r = nn.ReLU()
        self.chain = nn.Sequential(self.c, self.r, self.c, self.r)

    def forward(self, x):
        return self.chain(x)


def make():
    net = Net().train()
    return net


INPUTS = {"x": (3, 4, 6, 6)}
GRADS = []
SETTINGS = {"policy": "vdnn-all", "sections": 2}
