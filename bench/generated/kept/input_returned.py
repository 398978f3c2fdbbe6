# an input that requires grad or is returned but that nothing reads
from bench.generated.one_convolution import OneConvolution


class Net(OneConvolution):
    def forward(self, x, y):
        return (self.conv(x), y)


INPUTS = {"x": (3, 4, 6, 6), "y": (3, 4, 6, 6)}
GRADS = ["y"]
SETTINGS = {"policy": "vdnn-all", "sections": 2}
