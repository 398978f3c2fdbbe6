# forward returns a list, the virtualized network a tuple (_taken_apart in meta_tracer.py)
import torch
import tvdnn
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.bn0 = nn.BatchNorm2d(6, eps=0.001)
        self.conv0 = nn.Conv2d(6, 6, 1)
        self.bn1 = tvdnn.nn.BatchNorm2d(6)
        self.act0 = nn.GELU('tanh')
        self.conv1 = nn.Conv2d(6, 3, 1)
        self.conv2 = nn.Conv2d(3, 6, 1)
        self.lrn0 = nn.LocalResponseNorm(4, alpha=0.1)
        self.conv3 = nn.Conv2d(6, 3, 1)

    def forward(self, x):
        v0 = self.bn0(x)
        v1 = F.relu(v0)
        v2 = v1 + x
        v3 = self.conv0(x)
        v4 = self.bn1(v3)
        v5 = F.relu(v4)
        v6 = v5 + v2
        v7 = v6 + x
        v8 = self.act0(v5)
        v9 = torch.concat([v8, v3, v8, v6], dim=1)
        v10 = v8.abs()
        v11 = v6.sigmoid_()
        v12 = v10.mean((2, 3), keepdim=True)
        v13 = self.conv1(v12)
        v14 = F.relu(v13)
        v15 = self.conv2(v14)
        v16 = torch.sigmoid(v15)
        v17 = v10 * v16
        v18 = F.interpolate(v15, size=(1, 1), mode='bilinear')
        v19 = v17.permute(0, 2, 3, 1)
        v20 = self.lrn0(v3)
        v21 = v18.mean((2, 3), keepdim=True)
        v22 = self.conv3(v21)
        v23 = F.relu(v22)
        v28 = torch.stack([v9, v9], 1)
        v29 = v28.flatten(1, 2)
        return [v29]


def make():
    net = Net().train()
    return net


INPUTS = {"x": (2, 6, 6, 6)}
GRADS = ['x']
SETTINGS = {'policy': 'vdnn-conv', 'sections': 2}
