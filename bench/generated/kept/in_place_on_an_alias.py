# h += y while v = h.view(...) is read later
import torch

from bench.generated.one_convolution import OneConvolution


class Net(OneConvolution):
    def forward(self, x):
        h = self.conv(x)
        v = h.view(3, 4, 36)
        h += x
        return torch.cat([h, v.view(3, 4, 6, 6)], 1)


INPUTS = {"x": (3, 4, 6, 6)}
SETTINGS = {"policy": "vdnn-all", "sections": 2}
