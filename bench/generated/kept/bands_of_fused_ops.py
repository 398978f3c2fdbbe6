# a network that one policy fuses and another does not is cut into the same bands
import torch
import tvdnn
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stage0 = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))

    def forward(self, y):
        v2 = self.stage0(y)
        return v2


def make():
    net = Net().train()
    return net


INPUTS = {"y": (1, 1, 16, 16)}
GRADS = []
SETTINGS = {'policy': 'vdnn-all', 'chunk_size': 1024}
