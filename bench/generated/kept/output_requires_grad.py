# an output that depends on no parameter and no input that requires gradients is marked as requiring gradients; torch's does not
import torch
import tvdnn
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv0 = nn.Conv2d(1, 1, (1, 1))

    def forward(self, x):
        v3 = self.conv0(x)
        return (x, v3,)


def make():
    net = Net().train()
    return net


INPUTS = {"x": (1, 1, 1, 1)}
GRADS = []
SETTINGS = {'policy': 'vdnn-all'}
