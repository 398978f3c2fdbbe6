# a number that a call on maps yields: refused, no foreign exception
from bench.generated.one_convolution import OneConvolution


class Net(OneConvolution):
    def forward(self, x):
        v0 = self.conv(x)
        return v0 * (1 + v0.get_device())


INPUTS = {"x": (3, 4, 6, 6)}
SETTINGS = {"policy": "vdnn-all", "sections": 2}
