# forward returns a list
from bench.generated.one_convolution import OneConvolution


class Net(OneConvolution):
    channels = (6, 3)

    def forward(self, x):
        v0 = self.conv(x)
        return [v0]


INPUTS = {"x": (2, 6, 6, 6)}
GRADS = ["x"]
SETTINGS = {"policy": "vdnn-conv", "sections": 2}
