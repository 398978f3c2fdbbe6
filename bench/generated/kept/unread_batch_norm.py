# statistics of a batch normalization that nothing reads
from torch import nn

from bench.generated.one_convolution import OneConvolution


class Net(OneConvolution):
    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm2d(4)

    def forward(self, x):
        h = self.conv(x)
        u = self.bn(h)
        return h


INPUTS = {"x": (3, 4, 6, 6)}
SETTINGS = {"policy": "vdnn-all", "sections": 2}
