# self.n += 1 in forward
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(4, 4, 1)
        self.n = nn.Buffer(torch.zeros(1))

    def forward(self, x):
        self.n += 1
        return self.a(x)


INPUTS = {"x": (3, 4, 6, 6)}
SETTINGS = {"policy": "vdnn-all", "sections": 2}
