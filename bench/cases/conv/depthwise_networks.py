"""The depthwise layers of networks, measured beside torch's kernels."""

from typing import Final, NamedTuple


class Layer(NamedTuple):
    """A depthwise layer with its padding around, and how many of it a network has."""

    side: int
    channels: int
    taps: int
    stride: int = 1
    count: int = 1


class DepthwiseNetwork(NamedTuple):
    """The depthwise layers of a network, with the batch that they are measured at."""

    title: str
    samples: int
    layers: tuple[Layer, ...]


NETWORKS: Final = {
    "mobilenet_v2": DepthwiseNetwork("MobileNet-v2", 256, (
        Layer(112, 32, 3), Layer(112, 96, 3, 2), Layer(56, 144, 3), Layer(56, 144, 3, 2),
        Layer(28, 192, 3, count=2), Layer(28, 192, 3, 2), Layer(14, 384, 3, count=4),
        Layer(14, 576, 3, count=2), Layer(14, 576, 3, 2), Layer(7, 960, 3, count=3),
    )),
    "mobilenet_v3_large": DepthwiseNetwork("MobileNet-v3-large", 256, (
        Layer(112, 16, 3), Layer(112, 64, 3, 2), Layer(56, 72, 3), Layer(56, 72, 5, 2),
        Layer(28, 120, 5, count=2), Layer(28, 240, 3, 2), Layer(14, 200, 3),
        Layer(14, 184, 3, count=2), Layer(14, 480, 3), Layer(14, 672, 3), Layer(14, 672, 5, 2),
        Layer(7, 960, 5, count=2),
    )),
    "efficientnet_b0": DepthwiseNetwork("EfficientNet-B0", 128, (
        Layer(112, 32, 3), Layer(112, 96, 3, 2), Layer(56, 144, 3), Layer(56, 144, 5, 2),
        Layer(28, 240, 5), Layer(28, 240, 3, 2), Layer(14, 480, 3, count=2), Layer(14, 480, 5),
        Layer(14, 672, 5, count=2), Layer(14, 672, 5, 2), Layer(7, 1152, 5, count=3),
        Layer(7, 1152, 3),
    )),
    "efficientnet_b4": DepthwiseNetwork("EfficientNet-B4", 64, (
        Layer(190, 48, 3), Layer(190, 24, 3), Layer(190, 144, 3, 2), Layer(95, 192, 3, count=3),
        Layer(95, 192, 5, 2), Layer(48, 336, 5, count=3), Layer(48, 336, 3, 2),
        Layer(24, 672, 3, count=5), Layer(24, 672, 5), Layer(24, 960, 5, count=5),
        Layer(24, 960, 5, 2), Layer(12, 1632, 5, count=7), Layer(12, 1632, 3), Layer(12, 2688, 3),
    )),
    "efficientnet_v2_s": DepthwiseNetwork("EfficientNet-v2-S", 64, (
        Layer(48, 256, 3, 2), Layer(24, 512, 3, count=5), Layer(24, 768, 3),
        Layer(24, 960, 3, count=8), Layer(24, 960, 3, 2), Layer(12, 1536, 3, count=14),
    )),
    "convnext_tiny": DepthwiseNetwork("ConvNeXt-T", 128, (
        Layer(56, 96, 7, count=3), Layer(28, 192, 7, count=3), Layer(14, 384, 7, count=9),
        Layer(7, 768, 7, count=3),
    )),
    "xception41": DepthwiseNetwork("Xception-41", 64, (
        Layer(150, 64, 3), Layer(150, 128, 3), Layer(150, 128, 3, 2), Layer(75, 128, 3),
        Layer(75, 256, 3), Layer(75, 256, 3, 2), Layer(38, 256, 3), Layer(38, 728, 3),
        Layer(38, 728, 3, 2), Layer(19, 728, 3, count=26), Layer(19, 1024, 3, 2),
        Layer(10, 1024, 3), Layer(10, 1536, 3, count=2),
    )),
    "shufflenet_v2_x2_0": DepthwiseNetwork("ShuffleNet-v2 2x", 256, (
        Layer(56, 24, 3, 2), Layer(56, 122, 3, 2), Layer(28, 122, 3, count=3),
        Layer(28, 244, 3, 2, 2), Layer(14, 244, 3, count=7), Layer(14, 488, 3, 2, 2),
        Layer(7, 488, 3, count=3),
    )),
    "mnasnet1_3": DepthwiseNetwork("MNASNet-1.3", 256, (
        Layer(112, 40, 3), Layer(112, 72, 3, 2), Layer(56, 96, 3, count=2), Layer(56, 96, 5, 2),
        Layer(28, 168, 5, count=2), Layer(28, 336, 5, 2), Layer(14, 624, 5, count=2),
        Layer(14, 624, 3), Layer(14, 768, 3), Layer(14, 768, 5, 2), Layer(7, 1488, 5, count=3),
        Layer(7, 1488, 3),
    )),
    "mobilenetv4_conv_medium": DepthwiseNetwork("MobileNet-v4-conv-medium", 256, (
        Layer(64, 48, 3), Layer(64, 192, 5, 2), Layer(32, 80, 3, count=2), Layer(32, 160, 3),
        Layer(32, 480, 5, 2), Layer(16, 160, 3, count=6), Layer(16, 640, 3, count=3),
        Layer(16, 640, 5), Layer(16, 160, 5), Layer(16, 960, 5, 2), Layer(8, 256, 5, count=3),
        Layer(8, 1024, 5, count=4), Layer(8, 256, 3, count=4), Layer(8, 512, 5),
    )),
}  # fmt: skip
