# a dropout in evaluation gives back the input, which is a leaf
from torch import nn
from torch.nn import functional as F

from bench.generated.parts import SCOPE

Asking = SCOPE["Asking"]  # of bench/generated/parts.py


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.part0 = Asking()

    def forward(self, x):
        v0 = F.dropout2d(x, p=0.5, training=False)
        v2 = self.part0(v0)
        return v2


INPUTS = {"x": (1, 1, 1, 1)}
GRADS = ["x"]
SETTINGS = {"policy": "vdnn-conv"}
