"""Checks and times the convolution kernels on the layers of VGG-16 beside cuDNN.

    python -m bench.conv_probe [--samples 128] [--dtypes bf16 tf32] [--variants]

Prints one line a layer and pass, with the error against float32 cuDNN on the same inputs, and
writes the rows as JSON to $OUT/conv_probe.json if OUT is set. `--variants` also times other tiles.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from typing import Final
from unittest.mock import patch

import torch
import triton
from torch import Tensor
from torch.nn.functional import conv2d as torch_conv2d
from triton.testing import do_bench

from tvdnn.kernels import conv, conv_grad_weight, conv_grad_weight_tiles, conv_tiles
from tvdnn.kernels.conv_pack import pack_weight, pack_weight_grad_input
from tvdnn.kernels.conv_tiles import Tile
from tvdnn.kernels.device import num_sms
from tvdnn.kernels.reduce import sum_partials

CHECKED_SAMPLES: Final = 20  # an odd share of boxes and groups
convolution_backward = torch.ops.aten.convolution_backward
UNIT: Final = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "groups": 1}
DTYPES: Final = {"bf16": torch.bfloat16, "tf32": torch.float32}


@dataclass(frozen=True, slots=True)
class Layer:
    """A 3x3 convolution of VGG-16 and how many it has of it."""

    side: int
    in_channels: int
    out_channels: int
    count: int = 1

    @property
    def name(self) -> str:
        return f"{self.in_channels}->{self.out_channels} @{self.side}"


@dataclass(frozen=True, slots=True)
class Row:
    """One pass of one layer, timed."""

    layer: str
    count: int
    dtype: str
    kernel: str
    variant: str
    samples: int
    ms: float
    cudnn_ms: float
    tflops: float
    error: float


LAYERS: Final = (
    Layer(224, 3, 64), Layer(224, 64, 64), Layer(112, 64, 128), Layer(112, 128, 128),
    Layer(56, 128, 256), Layer(56, 256, 256, 2), Layer(28, 256, 512), Layer(28, 512, 512, 2),
    Layer(14, 512, 512, 3),
)  # fmt: skip
Tiles = dict[str, Tile]


class Operands:
    """Random maps and weights of a layer, and room for what the kernels make of them."""

    def __init__(self, layer: Layer, samples: int, dtype: torch.dtype) -> None:
        side, c, k = layer.side, layer.in_channels, layer.out_channels
        device = torch.device("cuda")
        self.x = torch.randn(samples, side, side, c, device=device).to(dtype)
        self.dy = torch.randn(samples, side, side, k, device=device).to(dtype)
        self.weight = torch.randn(k, c, 3, 3, device=device) * (9 * c) ** -0.5
        self.packed = torch.empty(k, 3, 3, c, device=device, dtype=dtype)
        self.packed_grad = torch.empty(c, 3, 3, k, device=device, dtype=dtype)
        pack_weight(self.weight, self.packed, groups=1)
        pack_weight_grad_input(self.weight, self.packed_grad, groups=1)
        self.y, self.dx = torch.full_like(self.dy, torch.nan), torch.full_like(self.x, torch.nan)
        self.grad = torch.full_like(self.weight, torch.nan)
        self.native = self.packed.permute(0, 3, 1, 2)

    def partials(self, precision: str, target: int) -> tuple[Tensor, dict[str, int]]:
        samples, side = self.x.shape[:2]
        k, c = self.dy.shape[3], self.x.shape[3]
        tiles = conv_grad_weight.grad_weight_tiles(k, c, 3, 3, 1, self.x.dtype, precision)
        group = min(64 if side <= 28 else 16, 1 << (samples - 1).bit_length())
        num_groups = ceil(samples / group)
        splits = max(1, round(target * num_sms() / (tiles * num_groups)))
        shape = (num_groups, splits, k, 3, 3, c)
        partials = torch.full(shape, torch.nan, device=self.x.device)
        return partials, {"group": group, "splits": splits}


def nchw(tensor: Tensor) -> Tensor:
    return tensor.permute(0, 3, 1, 2)


def cudnn_calls(o: Operands) -> dict[str, Callable[[], Tensor]]:
    x, dy, weight = nchw(o.x), nchw(o.dy), o.native
    one, zero = (1, 1), (0, 0)

    def backward(outputs: tuple[bool, bool, bool]) -> tuple[Tensor, Tensor, Tensor]:
        return convolution_backward(dy, x, weight, None, one, one, one, False, zero, 1, outputs)

    return {
        "forward": lambda: torch_conv2d(x, weight, padding=1),
        "data gradient": lambda: backward((True, False, False))[0],
        "weight gradient": lambda: backward((False, True, False))[1],
    }


def own_calls(o: Operands, target: int) -> dict[str, Callable[[], Tensor]]:
    settings = UNIT | {"precision": "tf32"}
    partials, cut = o.partials("tf32", target)

    def forward() -> Tensor:
        conv.conv2d(o.x, o.packed, None, o.y, **settings)
        return nchw(o.y)

    def grad_input() -> Tensor:
        conv.conv2d_grad_input(o.dy, o.packed_grad, o.dx, **settings)
        return nchw(o.dx)

    def grad_weight() -> Tensor:
        conv_grad_weight.conv2d_grad_weight(o.x, o.dy, partials, **cut, **settings)
        sum_partials(partials, o.grad, first=True)
        return o.grad

    return {"forward": forward, "data gradient": grad_input, "weight gradient": grad_weight}


def errors(
    layer: Layer, dtype: torch.dtype, target: int, kernels: tuple[str, ...]
) -> dict[str, float]:
    """RMS error of each pass against float32 cuDNN without TF32, on fresh inputs."""
    o = Operands(layer, CHECKED_SAMPLES, dtype)
    own = {
        name: call().float().clone()
        for name, call in own_calls(o, target).items()
        if name in kernels
    }
    o.x, o.dy, o.native = o.x.float(), o.dy.float(), o.native.float()
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        exact = {name: cudnn_calls(o)[name]() for name in own}
    return {name: float((own[name] - exact[name]).norm() / exact[name].norm()) for name in own}


def box_variants(dtype: torch.dtype) -> Tiles:
    c = 128 // dtype.itemsize
    return {"256x64 s3": Tile(256, 64, c, 8, 3)}


def grad_weight_variants(layer: Layer, dtype: torch.dtype) -> Tiles:
    k, c = min(128, layer.out_channels), min(128, layer.in_channels)
    if dtype == torch.float32:
        return {"32x128x64 w2": Tile(32, k, min(64, c), 2, 3)}
    return {"128 s3": Tile(128, k, c, 8, 3)}


@contextmanager
def tiled(kernel: str, tile: Tile | None, small_map: int | None = None) -> Iterator[None]:
    """Launches of this kernel take another tile."""
    of_weight = kernel == "weight gradient"
    name = "grad_weight_tile" if of_weight else "box_tile"
    launchers = conv_grad_weight if of_weight else conv
    tiles = conv_grad_weight_tiles if of_weight else conv_tiles
    chosen = getattr(tiles, name) if tile is None else lambda *_: tile
    limit = conv_grad_weight.SMALL_MAP if small_map is None else small_map
    with (
        patch.object(launchers, name, chosen),
        patch.object(tiles, name, chosen),
        patch.object(conv_grad_weight, "SMALL_MAP", limit),
    ):
        yield


def variants_of(
    layer: Layer, dtype: torch.dtype, kernel: str
) -> Iterator[tuple[str, Tile | None, int | None, int]]:
    """Names, tiles, limits of small maps and target waves to time."""
    if kernel != "weight gradient":
        if layer.in_channels > 3:
            for name, tile in box_variants(dtype).items():
                yield name, tile, None, 4
        return
    if layer.in_channels == 3:
        yield "waves 8", None, None, 8
        return
    for name, tile in grad_weight_variants(layer, dtype).items():
        yield name, tile, None, 4
    if layer.side <= 28:
        yield "flat", None, 0, 4
    yield "waves 2", None, None, 2


def measure(layer: Layer, samples: int, dtype_name: str, with_variants: bool) -> Iterator[Row]:
    dtype = DTYPES[dtype_name]
    o = Operands(layer, samples, dtype)
    flops = 2e-9 * 9 * layer.in_channels * layer.out_channels * layer.side**2 * samples
    for kernel, reference in cudnn_calls(o).items():
        cudnn_ms = timed(reference)
        settings = [("chosen", None, None, 4)]
        if with_variants:
            settings += variants_of(layer, dtype, kernel)
        for name, tile, small_map, target in settings:
            with tiled(kernel, tile, small_map):
                try:
                    error = errors(layer, dtype, target, (kernel,))[kernel]
                    ms = timed(own_calls(o, target)[kernel])
                except (triton.runtime.errors.OutOfResources, RuntimeError) as fault:
                    sys.stdout.write(f"{layer.name} {kernel} {name}: {str(fault)[:80]}\n")
                    continue
            yield Row(
                layer.name, layer.count, dtype_name, kernel, name, samples, ms, cudnn_ms,
                flops / ms, error,
            )  # fmt: skip


def timed(call: Callable[[], Tensor]) -> float:
    return float(do_bench(call, warmup=8, rep=30, return_mode="median"))


def line(row: Row) -> str:
    name = f"{row.dtype} {row.layer:14} {row.kernel:15} {row.variant:12}"
    speed = f"{row.ms:8.3f} ms {row.tflops:5.0f} TFLOP/s {row.cudnn_ms / row.ms:5.2f} of cuDNN"
    return f"{name} {speed}, error {row.error:.1e}"


def totals(rows: list[Row]) -> Iterator[str]:
    for dtype in DTYPES:
        for kernel in ("forward", "data gradient", "weight gradient"):
            mine = [r for r in rows if (r.dtype, r.kernel) == (dtype, kernel)]
            chosen = [r for r in mine if r.variant == "chosen"]
            if not chosen:
                continue
            best = [
                min((r for r in mine if r.layer == c.layer), key=lambda r: r.ms) for c in chosen
            ]
            sums = [sum(r.count * r.ms for r in part) for part in (chosen, best)]
            cudnn = sum(r.count * r.cudnn_ms for r in chosen)
            yield f"{dtype} {kernel:15} {sums[0]:.2f} ms, best {sums[1]:.2f}, cuDNN {cudnn:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--variants", action="store_true")
    parser.add_argument("--seconds", type=float, default=240, help="stop before a layer after this")
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    start, rows = time.monotonic(), []
    for dtype in options.dtypes:
        for layer in reversed(LAYERS):
            if time.monotonic() - start > options.seconds:
                sys.stdout.write(f"out of time before {dtype} {layer.name}\n")
                continue
            for row in measure(layer, options.samples, dtype, options.variants):
                rows.append(row)
                sys.stdout.write(line(row) + "\n")
            torch.cuda.empty_cache()
    sys.stdout.write("\n".join(totals(rows)) + "\n")
    if "OUT" in os.environ:
        versions = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
        record = versions | {"triton": triton.__version__, "rows": [asdict(row) for row in rows]}
        Path(os.environ["OUT"], "conv_probe.json").write_text(json.dumps(record))


if __name__ == "__main__":
    main()
