# What a view of a softmax is was not proved where it is joined with a convolution's channels.
import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Conv2d(4, 1, 1)
        self.conv3 = nn.Conv2d(1, 4, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(5)
        self.conv4 = nn.Conv2d(5, 4, 3, padding=1)

    def forward(self, x):
        v7 = self.c(x)
        v10 = F.softmax(v7.flatten(2), -1).view(4, 1, 5, 2)
        v14 = self.conv3(v10)
        v15 = torch.cat([v10, v14], 1)
        v18 = self.conv4(F.relu(self.bn2(v15)))
        return torch.cat([v10, v14, v18], 1)


def make():
    net = Net().eval()
    return net


INPUTS = {"x": (4, 4, 5, 2)}
SETTINGS = {"policy": "vdnn-all"}
