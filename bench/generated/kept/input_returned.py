# an input that requires grad or is returned but that nothing reads
import torch
import tvdnn
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(4, 4, 1)

    def forward(self, x, y):
        return (self.a(x), y)


def make():
    net = Net().train()
    return net


INPUTS = {"x": (3, 4, 6, 6), "y": (3, 4, 6, 6)}
GRADS = ["y"]
SETTINGS = {"policy": "vdnn-all", "sections": 2}
