# GroupNorm(12, 12) of [5, 12]: torch gives the bias; the reference of one sample raises ValueError
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv0 = nn.Conv2d(16, 12, (2, 3), stride=2, padding=1)
        self.gn0 = nn.GroupNorm(4, 12, affine=False)
        self.fc0 = nn.Linear(12, 12)
        self.bn0 = nn.BatchNorm1d(12, affine=False, momentum=0.3)
        self.gn1 = nn.GroupNorm(12, 12)

    def forward(self, x):
        v0 = self.conv0(x)
        v1 = self.gn0(v0)
        v2 = v1.mean((2, 3))
        v3 = self.fc0(v2)
        v4 = torch.sigmoid(v3.view(5, 12, 1, 1))
        v5 = v1 * v4
        v6 = self.bn0(v3)
        v7 = self.gn1(v6)
        return {"out0": v7, "out1": v5}


INPUTS = {"x": (5, 16, 10, 10)}
SETTINGS = {"policy": "auto", "sections": 3, "budget": 0.25}
