# running statistics of a BatchNorm1d over [N, C, L] that nothing reads are not updated, in silence
# A dead call that is refused but changes state is dropped. Owner: tracing
from torch import nn

from bench.generated.one_convolution import OneConvolution


class Net(OneConvolution):
    channels = (3, 3)

    def __init__(self):
        super().__init__()
        self.bn = nn.BatchNorm1d(3)

    def forward(self, x):
        unused = self.bn(x.flatten(2))
        return self.conv(x)


INPUTS = {"x": (4, 3, 4, 4)}
SETTINGS = {"policy": "vdnn-all"}
