# y * p with p of shape [1]
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(4, 4, 1)
        self.p = nn.Parameter(torch.full((1,), 0.5))

    def forward(self, x):
        return self.a(x) * self.p


INPUTS = {"x": (3, 4, 6, 6)}
SETTINGS = {"policy": "vdnn-all", "sections": 2}
