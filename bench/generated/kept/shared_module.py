# a module registered under two names
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Conv2d(4, 4, 3, padding=1)
        self.r = nn.ReLU()
        self.chain = nn.Sequential(self.c, self.r, self.c, self.r)

    def forward(self, x):
        return self.chain(x)


INPUTS = {"x": (3, 4, 6, 6)}
SETTINGS = {"policy": "vdnn-all", "sections": 2}
