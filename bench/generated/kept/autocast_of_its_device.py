# a region of torch.autocast on the device that a map names: refused
import torch

from bench.generated.one_convolution import OneConvolution


class Net(OneConvolution):
    def forward(self, x):
        v0 = self.conv(x)
        region = torch.autocast(v0.device.type, dtype=torch.bfloat16, enabled=False)
        region.__enter__()
        v1 = v0 * 2
        region.__exit__(None, None, None)
        return v1


INPUTS = {"x": (3, 4, 6, 6)}
SETTINGS = {"policy": "vdnn-all", "sections": 2}
