# which ReLUs fall on the other side of zero by rounding is luck, for torch as well
import torch
from torch import nn
from torch.nn import functional as F

from bench.generated.parts import SCOPE

Running = SCOPE["Running"]  # of bench/generated/parts.py


def squeezed():
    return nn.Sequential(
        nn.Conv2d(128, 8, 1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 128, 1, bias=False),
        nn.BatchNorm2d(128),
    )


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv0 = nn.Conv2d(8, 6, 3, stride=2, padding=1, bias=False)
        self.bn0 = nn.BatchNorm2d(6, track_running_stats=False, momentum=0.3, eps=0.001)
        self.conv1 = nn.Conv2d(6, 6, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(6, momentum=None, eps=0.001)
        self.conv2 = nn.Conv2d(8, 6, 1, stride=2, bias=False)
        self.bn2 = nn.BatchNorm2d(6)
        self.gn0 = nn.GroupNorm(6, 6)
        self.p0 = nn.Parameter(torch.full((1,), 0.2))
        self.opaque0 = Running(6)
        self.conv3 = nn.Conv2d(6, 6, 3, padding=1)
        self.act0 = nn.Tanh()
        self.bn3 = nn.BatchNorm2d(6)
        self.conv4 = nn.Conv2d(6, 128, 1)
        self.block0 = squeezed()
        self.block1 = squeezed()

    def forward(self, x):
        v0 = self.conv0(x)
        v1 = self.bn0(v0)
        v2 = F.relu(v1)
        v3 = self.conv1(v2)
        v4 = self.bn1(v3)
        v5 = self.conv2(x)
        v6 = self.bn2(v5)
        v7 = F.relu(v4 + v6)
        v8 = v3.swapaxes(2, 3)
        v9 = v7.sum(3).mean(-1)
        v10 = self.gn0(v9)
        v11 = F.prelu(v9, self.p0)
        v12 = self.opaque0(x=self.opaque0(v7))
        v13 = self.bn3(self.conv3(self.bn3(self.conv3(v8))))
        v14 = self.conv4(v12)
        v15 = self.block0(v14)
        v16 = F.relu(v15 + v14)
        v17 = self.block1(v16)
        v18 = F.relu(v17 + v16)
        return v18


INPUTS = {"x": (2, 8, 7, 16)}
GRADS = ["x"]
CHANGE = "net.conv4.weight = nn.Parameter(net.conv4.weight.detach() * 0.5)"
SETTINGS = {"policy": "vdnn-all", "sections": 3, "opaque": True, "between": CHANGE}
