# a lazy normalization, while terms are measured
import torch
import tvdnn
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lazy0 = nn.LazyBatchNorm1d()
        self.gn0 = nn.GroupNorm(1, 1)

    def forward(self, y):
        v1 = self.lazy0(input=y)
        v3 = self.gn0(v1)
        return v3


def make():
    net = Net().train()
    return net


INPUTS = {"y": (2, 1)}
GRADS = []
SETTINGS = {'policy': 'vdnn-all'}
