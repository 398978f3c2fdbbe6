# a layer that is frozen, and a forward that counts, under a trainer
import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(4, 6, 3, padding=1)
        self.bn = nn.BatchNorm2d(6)
        self.b = nn.Conv2d(6, 3, 1)
        self.count = nn.Buffer(torch.zeros(1))

    def forward(self, x):
        self.count += 1
        return self.b(F.relu(self.bn(self.a(x)))) * self.count


INPUTS = {"x": (4, 4, 6, 5)}
SETTINGS = {
    "policy": "auto",
    "budget": 0.0,
    "between": "net.a.requires_grad_(False); net.bn.eval()",
    "trainer": {"loss": "nn.MSELoss()", "optimizer": "SGD(lr=LR, momentum=0.9)"},
}
