import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc0 = nn.Linear(16, 13)
        self.fc1 = nn.Linear(13, 10)
        self.p0 = nn.Parameter(torch.full((13,), 0.2))
        self.act0 = nn.Threshold(0.1, -0.5)
        self.conv0 = nn.Conv2d(3, 7, 1, stride=1, padding=0, dilation=3)
        self.fc2 = nn.Linear(10, 3)

    def forward(self, x, y):
        v0 = self.fc0(x)
        v1 = self.fc1(v0)
        v2 = F.glu(v1, dim=1)
        v3 = F.prelu(v0, self.p0)
        v4 = v1.clamp_min(0.1)
        v5 = self.act0(v4)
        v6 = self.conv0(y)
        v7 = self.fc2(v4)
        return v7


def make():
    net = Net().eval()
    return net


INPUTS = {"x": (3, 16), "y": (3, 3, 5, 5)}
GRADS = ["y"]
SETTINGS = {"policy": "vdnn-dyn", "sections": 3, "budget": 0.0}
