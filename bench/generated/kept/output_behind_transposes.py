# the checker refuses the schedule: an output that is a view of a sum's
import torch
from torch import nn
from torch.nn import functional as F

import tvdnn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv0 = tvdnn.nn.Conv2d(4, 4, 5, padding=2, groups=4)
        self.bn0 = tvdnn.nn.BatchNorm2d(4)
        self.conv1 = tvdnn.nn.Conv2d(4, 4, 1)
        self.bn1 = tvdnn.nn.BatchNorm2d(4, momentum=0.3)
        self.act0 = tvdnn.nn.ELU(0.5)
        self.bn2 = tvdnn.nn.BatchNorm2d(4, momentum=None)

    def forward(self, x):
        v0 = torch.flip(x, [-1])
        v1 = self.conv0(v0)
        v2 = self.bn0(v0)
        v3 = F.relu(v2)
        v4 = v0 + v3
        v5 = self.conv1(v0)
        v6 = self.bn1(v5)
        v7 = v6 + v4
        v8 = self.act0(v5)
        v9 = self.bn2(v7)
        v10 = F.relu(v9)
        v11 = v9 + v10
        v12 = F.relu(v7)
        v13 = v12 + v11
        v14 = F.relu(v7)
        v15 = v14 + v13
        v16 = v13.transpose(2, 3).transpose(2, 3)
        return {"out0": v16, "out1": v15}


def make():
    net = Net().eval()
    return net


INPUTS = {"x": (5, 4, 9, 9)}
SETTINGS = {"policy": "vdnn-all", "sections": 3, "evaluates": True}
