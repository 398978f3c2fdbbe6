"""Settings that tests of convolutions take, and layers compiled for every architecture."""

from typing import Any, Final

from bench.cases.case import At
from bench.cases.conv.layers import Layer
from bench.cases.launch import Settings
from bench.cases.operands import BF16, F32
from tvdnn.kernels.language.gluon import widens

CELL: Final = 4  # rows and columns that tests sum, a divisor of every side
EXACT, HALF, WIDE = {"dtype": F32, "precision": "ieee"}, {"dtype": BF16}, {"dtype": F32}
WIDTHS: Final = (2, 4, 8, 16, 32, 64)  # channels of groups
FOURS: Final = Layer(8, 128, 128, groups=32)
CHECKED: Final[dict[str, Settings]] = {
    "bf16": HALF,
    "tf32": WIDE,
    "fp32": EXACT,
    "stride 2": {"stride": 2},
    "1x1": {"taps": 1},
    "few channels": {"channels": 3},
    "few channels, tf32": {"channels": 3, **WIDE},
    "few channels, 7x7, stride 2": {"channels": 3, "taps": 7, "stride": 2},
    "18 channels": {"channels": 18},
    "24 channels, 5x5": {"channels": 24, "taps": 5},
    "40 channels": {"channels": 40},
    "40 channels, 1x1, tf32": {"channels": 40, "taps": 1, **WIDE},
    "120 channels": {"channels": 120},
    "18 to 36 channels, padded": {"layer": Layer(8, 18, 36, padded=True)},
    "122 channels, padded, 1x1": {"layer": Layer(8, 122, 122, 1, padded=True)},
    "50 channels, padded, stride 2": {"layer": Layer(8, 50, 27, stride=2, padded=True)},
    "in groups": {"groups": 4},
    **{f"groups of {each}": {"layer": Layer(8, 128, 128, groups=128 // each)} for each in WIDTHS},
    "groups of 4, tf32": {"layer": FOURS, **WIDE},
    "groups of 4, fp32": {"layer": FOURS, **EXACT},
    "groups of 16, stride 2": {"layer": Layer(8, 64, 64, stride=2, groups=4)},
    "groups of 8, tf32, stride 2": {"layer": Layer(8, 104, 104, stride=2, groups=13), **WIDE},
    "groups of 40": {"layer": Layer(8, 120, 120, groups=3)},
    "groups of 40, tf32": {"layer": Layer(8, 80, 80, groups=2), **WIDE},
    "groups of 40, fp32": {"layer": Layer(4, 80, 80, groups=2), **EXACT},
    "groups of 72, stride 2": {"layer": Layer(8, 144, 144, stride=2, groups=2)},
    "groups of 112": {"layer": Layer(4, 224, 224, groups=2)},
    "groups of 24, dilated": {"layer": Layer(9, 72, 72, stride=3, dilation=2, groups=3)},
}


def _at(layer: Layer, *settings: Settings, wgmma: bool = True, tuned: bool = False) -> At:
    """Products of float32 operands in full precision use no warpgroups."""
    given: dict[str, Any] = {"layer": layer}
    for each in settings:
        given |= each
    return At((64,), given, wgmma and given.get("precision") != "ieee", tuned)


def both(layer: Layer, *settings: Settings, wgmma: bool = True) -> tuple[At, At]:
    """The layer compiled in bfloat16 and in TF32."""
    return _at(layer, *settings, HALF, wgmma=wgmma), _at(layer, *settings, WIDE, wgmma=wgmma)


RELU: Final = {"relu": True}
FIRST, BOX, NARROW = Layer(56, 3, 64), Layer(14, 128, 256), Layer(56, 64, 64)
STRIDED, ROWS, LARGE = Layer(14, 64, 128, stride=2), Layer(112, 128, 256), Layer(224, 64, 64)
SPREAD: Final = Layer(14, 64, 128, stride=2, dilation=2)
WINDOWS: Final = (Layer(192, 24, 24), Layer(56, 16, 20))
STEM: Final = Layer(224, 3, 64, 7, 2)
LONG_ROWS: Final = Layer(227, 3, 64, 11, 4)  # whose windows suit no product
FORWARD: Final = (
    _at(BOX, RELU, HALF, tuned=True),
    _at(BOX, RELU, WIDE),
    _at(FIRST, RELU, HALF),
    _at(FIRST, RELU, WIDE),
    *(each for layer in (*WINDOWS, STEM) for each in both(layer, RELU)),
    _at(LONG_ROWS, RELU, HALF),
    _at(LONG_ROWS, RELU, WIDE, tuned=True),
    _at(FIRST, RELU, EXACT),
    *both(NARROW, RELU),
    _at(Layer(14, 96, 40), RELU, HALF, tuned=True),
    *both(STRIDED, RELU),
    _at(Layer(14, 64, 128), RELU, EXACT),
    _at(Layer(14, 36, 36, groups=9), RELU, HALF, wgmma=False),  # TMA moves multiples of 16 bytes
    *both(Layer(56, 128, 128, groups=32), RELU),
    *both(Layer(56, 256, 256, stride=2, groups=32), RELU),
    *both(Layer(112, 72, 72, stride=2, groups=3), RELU),
    _at(Layer(28, 216, 216, groups=9), RELU, HALF),
    _at(Layer(14, 256, 256, groups=2), RELU, HALF),
    *both(Layer(56, 224, 224, groups=2), RELU),
    _at(Layer(56, 224, 224, stride=2, groups=2), RELU, HALF),
    _at(Layer(28, 96, 96, groups=2), RELU, HALF),
    _at(Layer(14, 128, 128, groups=32), RELU, EXACT),
    _at(Layer(15, 72, 72, stride=3, groups=3), RELU, HALF),  # by pointers
    _at(ROWS, RELU, HALF),
    _at(ROWS, RELU, WIDE, tuned=True),
    _at(Layer(14, 24, 128, stride=2), RELU, HALF),
    _at(Layer(112, 48, 48, stride=2, groups=6), RELU, HALF),
    _at(Layer(96, 48, 192, stride=2), RELU, HALF),
    *both(Layer(28, 72, 24, 1), RELU),
    *both(Layer(14, 240, 80, 1), RELU),
    *both(Layer(14, 120, 16), RELU),
    _at(Layer(28, 122, 122, 1, padded=True), RELU, HALF),
    _at(Layer(56, 18, 36, padded=True), RELU, HALF),
)
MOMENTS: Final = tuple(
    _at(layer, {"moments": True, "bias": False, "out_precision": "ieee"}, kind)
    for layer, kind in (
        (STEM, HALF),
        (STEM, WIDE),
        (Layer(224, 3, 32, 3, 2), HALF),
        (Layer(224, 3, 16, 7), WIDE),
        (WINDOWS[0], HALF),
        (WINDOWS[0], WIDE),
        (Layer(56, 64, 256, 1), HALF),
        (Layer(56, 64, 64), HALF),
        (Layer(56, 96, 128, 1), HALF),
        (Layer(28, 24, 72, 1), HALF),
        (Layer(28, 120, 40, 1), HALF),
        (Layer(56, 18, 36, padded=True), HALF),
        (Layer(28, 122, 122, 1, padded=True), HALF),
        (Layer(112, 128, 128), WIDE),
        (Layer(56, 64, 256, 1), WIDE),
        (Layer(56, 128, 128, groups=32), HALF),
        (Layer(56, 256, 256, stride=2, groups=32), HALF),
        (Layer(56, 224, 224, groups=2), HALF),
        (Layer(112, 224, 224, stride=2, groups=2), HALF),
        (Layer(112, 72, 72, stride=2, groups=3), HALF),
        (Layer(14, 560, 560, groups=10), HALF),
    )
)
POOLED: Final = (
    _at(BOX, HALF, tuned=True),
    _at(BOX, WIDE),
    *(_at(layer, HALF) for layer in (NARROW, FIRST, Layer(56, 128, 256))),
    _at(FIRST, WIDE),
    _at(STRIDED, HALF),
    _at(LARGE, WIDE),
    _at(Layer(56, 128, 128, groups=32), HALF),
    _at(Layer(56, 224, 224, groups=2), HALF),
)
MASKED: Final = {"masked": True}
BY_BITS: Final = {"masked": True, "bits": True}
UNEVEN: Final = Layer(14, 24, 64, 5)  # Triton stores and loads 24 channels in two layouts
TRANSPOSED: Final = Layer(128, 256, 512, 2, 2, pad=0)  # a decoder's windows of 2x2 side by side
GRADIENTS: Final = (
    _at(BOX, MASKED, HALF),
    _at(LARGE, MASKED, HALF, tuned=True),
    _at(LARGE, MASKED, WIDE),
    _at(BOX, BY_BITS, HALF),
    _at(LARGE, BY_BITS, WIDE),
    _at(Layer(112, 64, 64), BY_BITS, HALF),
    _at(Layer(112, 64, 64), BY_BITS, {"cell": 8}, HALF),
    _at(LARGE, MASKED, {"cell": 8}, HALF),
    _at(Layer(28, 512, 512), MASKED, {"cell": 4}, HALF),
    _at(Layer(14, 512, 512), MASKED, {"cell": 2}, HALF),
    # Where products widen no tile, a kernel of its own sums the cells.
    _at(Layer(112, 64, 64), MASKED, {"cell": 8}, WIDE, wgmma=widens()),
    _at(Layer(14, 3, 64), MASKED, HALF),
    *(each for layer in WINDOWS for each in both(layer, MASKED)),
    *both(WINDOWS[0], BY_BITS),
    *both(STRIDED, MASKED),
    _at(STRIDED, BY_BITS, HALF),
    _at(Layer(14, 24, 64), BY_BITS, WIDE),
    _at(UNEVEN, MASKED, EXACT),
    _at(UNEVEN, BY_BITS, EXACT),
    *both(Layer(28, 72, 24, 1), MASKED),
    *both(Layer(14, 72, 120), BY_BITS),
    _at(Layer(28, 122, 122, 1, padded=True), MASKED, HALF),
    _at(Layer(56, 18, 36, padded=True), MASKED, HALF),
    *both(TRANSPOSED, {"bias": True}),
    *both(SPREAD, MASKED),
    *both(Layer(56, 128, 128, groups=32), MASKED),
    *both(Layer(56, 128, 128, groups=32), BY_BITS),
    *both(Layer(56, 256, 256, stride=2, groups=32), MASKED),
    _at(Layer(56, 128, 128, groups=32), MASKED, {"cell": 8}, HALF),
    _at(Layer(28, 216, 216, stride=3, groups=9), MASKED, HALF),  # by pointers
    _at(Layer(56, 224, 224, groups=2), HALF),
    *both(Layer(56, 224, 224, groups=2), MASKED),
    _at(Layer(56, 224, 224, groups=2), BY_BITS, HALF),
    _at(Layer(56, 224, 224, stride=2, groups=2), HALF),
    _at(Layer(28, 192, 192, groups=2), MASKED, HALF),
    _at(Layer(28, 192, 192, groups=2), BY_BITS, HALF),
    _at(Layer(28, 192, 192, groups=2), MASKED, {"cell": 4}, HALF),
)
