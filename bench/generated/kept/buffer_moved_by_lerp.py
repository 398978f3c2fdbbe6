# a buffer that a call writes which tvdnn has not: refused, not dropped
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(4, 4, 1)
        self.mean = nn.Buffer(torch.zeros(3, 1))

    def forward(self, x):
        v0 = self.a(x)
        self.mean.lerp_(v0.detach().amax(2).amax(2).amax(1, keepdim=True), 0.1)
        return v0


INPUTS = {"x": (3, 4, 6, 6)}
SETTINGS = {"policy": "vdnn-all", "sections": 2}
