# accumulate decays parameters that no output depends on
import torch
import tvdnn
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(4, 4, 1)
        self.unused = nn.Conv2d(4, 4, 1)

    def forward(self, x):
        u = self.unused(x)
        return self.a(x)


def make():
    net = Net().train()
    return net


INPUTS = {"x": (4, 4, 6, 6)}
GRADS = []
SETTINGS = {"policy": "vdnn-all", "sections": 2, "trainer": {"loss": "nn.MSELoss()", "optimizer": "SGD(lr=LR, weight_decay=0.1)", "accumulate": 2}}
