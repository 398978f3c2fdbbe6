# (bn1(a) + bn2(b)) + bn3(c)
import torch
import tvdnn
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(4, 4, 1)
        self.b = nn.Conv2d(4, 4, 1)
        self.c = nn.Conv2d(4, 4, 1)
        self.bn1 = nn.BatchNorm2d(4)
        self.bn2 = nn.BatchNorm2d(4)
        self.bn3 = nn.BatchNorm2d(4)

    def forward(self, x):
        return (self.bn1(self.a(x)) + self.bn2(self.b(x))) + self.bn3(self.c(x))


def make():
    net = Net().train()
    return net


INPUTS = {"x": (3, 4, 6, 6)}
GRADS = []
SETTINGS = {"policy": "vdnn-all", "sections": 2}
