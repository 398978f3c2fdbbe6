# v4 = v3.detach(); v3 *= 2: v4 must change, too
import torch

from bench.generated.one_convolution import OneConvolution


class Net(OneConvolution):
    channels = (1, 1)

    def forward(self, x):
        v3 = self.conv(x)
        v4 = v3.detach()
        v3 *= 2
        v5 = torch.cat([v3, v4], 1)
        return v5


INPUTS = {"x": (1, 1, 1, 1)}
SETTINGS = {"policy": "vdnn-all"}
