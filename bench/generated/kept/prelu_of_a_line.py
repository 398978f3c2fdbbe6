# PReLU of [N, C, L]
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv1d(4, 4, 1)
        self.act = nn.PReLU(4)
        self.p = nn.Parameter(torch.randn(4, 1))

    def forward(self, x):
        return self.act(self.a(x)) * self.p


INPUTS = {"x": (3, 4, 6)}
SETTINGS = {"policy": "vdnn-all", "sections": 2}
