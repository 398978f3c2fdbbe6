"""Convolutions, linear layers, normalizations, pooling, resizing and dropout, with all settings."""

from bench.generated.kinds import both, channels, kind, settings, sides, sometimes
from bench.generated.source import chance, choice
from bench.generated.writer import RejectedError, Writer


@kind(14)
def conv2d(w: Writer, x: str) -> str:
    """A layer, or its function on parameters of the network."""
    _, c, *size = w.shape(x)
    out = channels(w)
    kernel = choice(w.source, (3, 1, 2, (1, 3), (3, 1), 5, (2, 3)))
    given = _window(w, kernel, size)
    groups = _groups(w, c, out)
    if chance(w.source, 15):
        weight = param(w, (out, c // groups, *sides(kernel)), 0.3)
        bias = f", {param(w, (out,), 0.3)}" if chance(w.source, 50) else ""
        options = settings(**given, groups=None if groups == 1 else groups)
        return w.line(f"F.conv2d({{0}}, {weight}{bias}{options})", x)
    bias = sometimes(w, 40, False)
    options = settings(**given, groups=None if groups == 1 else groups, bias=bias)
    return w.layer("conv", f"nn.Conv2d({c}, {out}, {kernel}{options})", x)


@kind(4)
def conv2d_depthwise(w: Writer, x: str) -> str:
    _, c, *size = w.shape(x)
    kernel = choice(w.source, (3, 1, 2, (3, 2), 5))
    out = c * choice(w.source, (1, 1, 1, 2))
    options = settings(**_window(w, kernel, size), groups=c, bias=sometimes(w, 30, False))
    return w.layer("conv", f"nn.Conv2d({c}, {out}, {kernel}{options})", x)


@kind(5)
def pointwise_conv2d(w: Writer, x: str) -> str:
    c, out = w.shape(x)[1], channels(w)
    options = settings(bias=sometimes(w, 40, False), stride=sometimes(w, 20, 2))
    return w.layer("conv", f"nn.Conv2d({c}, {out}, 1{options})", x)


@kind(4)
def same_conv2d(w: Writer, x: str) -> str:
    """A convolution from and to the map's shape, which sums want."""
    c = w.shape(x)[1]
    options = settings(padding=choice(w.source, (1, "same")), bias=sometimes(w, 40, False))
    return w.layer("conv", f"nn.Conv2d({c}, {c}, 3{options})", x)


@kind(4)
def conv_transpose2d(w: Writer, x: str) -> str:
    w.at_most(x, 100)
    c = w.shape(x)[1]
    out = channels(w)
    kernel, stride = both(w, 1, 3), both(w, 1, 3)
    groups = _groups(w, c, out)
    rest = min(sides(stride)) - 1
    options = settings(
        stride=stride,
        padding=sometimes(w, 40, min(1, min(sides(kernel)) - 1)),
        output_padding=sometimes(w, 40, w.source.integer(0, rest)),
        dilation=sometimes(w, 15, 2),
        groups=None if groups == 1 else groups,
        bias=sometimes(w, 30, False),
    )
    return w.layer("conv", f"nn.ConvTranspose2d({c}, {out}, {kernel}{options})", x)


@kind(8, "row")
def linear(w: Writer, x: str) -> str:
    features, out = w.shape(x)[1], w.source.integer(1, 20)
    if chance(w.source, 15):
        weight = param(w, (out, features), 0.3)
        bias = f", {param(w, (out,), 0.3)}" if chance(w.source, 50) else ""
        return w.line(f"F.linear({{0}}, {weight}{bias})", x)
    return w.layer("fc", f"nn.Linear({features}, {out}{settings(bias=sometimes(w, 30, False))})", x)


@kind(6, "last")
def linear_last(w: Writer, x: str) -> str:
    features, out = w.shape(x)[3], w.source.integer(1, 12)
    return w.layer("fc", f"nn.Linear({features}, {out})", x, permuted=True)


def norm_of(w: Writer, x: str) -> str:
    """A batch normalization for `x`; the layer's name."""
    dims = 2 if w.kind(x) == "map" else 1  # of rows, and of rows of values
    options = settings(
        affine=sometimes(w, 15, False),
        track_running_stats=sometimes(w, 10, False),
        momentum=choice(w.source, ("absent", "absent", "absent", "none", 0.3)),
        eps=sometimes(w, 20, 1e-3),
    )
    options = options.replace(", momentum='absent'", "").replace("'none'", "None")
    # torch's layer of many processes is a plain one in one process
    layer = "nn.SyncBatchNorm" if "eps" in options else f"nn.BatchNorm{dims}d"
    return w.member("bn", f"{layer}({w.shape(x)[1]}{options})")


@kind(9, "map", "row")
def batch_norm(w: Writer, x: str) -> str:
    return w.line(f"{norm_of(w, x)}({{0}})", x)


@kind(2, "map", "row")
def batch_norm_of_its_own_mode(w: Writer, x: str) -> str:
    """A layer that trains where the network does not, or the reverse."""
    layer = norm_of(w, x)
    w.configure(f"net.{layer.removeprefix('self.')}.{'eval' if w.training else 'train'}()")
    return w.line(f"{layer}({{0}})", x)


@kind(2, "map", "row")
def functional_batch_norm(w: Writer, x: str) -> str:
    """The function, with buffers and parameters of the network, or none."""
    c = w.shape(x)[1]
    state = "None, None"
    if chance(w.source, 60):
        state = f"{_buffer(w, (c,), 'zeros')}, {_buffer(w, (c,), 'ones')}"
    affine = f", {param(w, (c,), 1.0)}, {param(w, (c,), 1.0)}" if chance(w.source, 50) else ""
    training = "None" in state or chance(w.source, 60)
    return w.line(f"F.batch_norm({{0}}, {state}{affine}, training={training})", x)


@kind(5, "map", "row")
def group_norm(w: Writer, x: str) -> str:
    c = w.shape(x)[1]
    groups = choice(w.source, [g for g in range(1, c + 1) if c % g == 0])
    affine = sometimes(w, 15, False)
    return w.layer("gn", f"nn.GroupNorm({groups}, {c}{settings(affine=affine)})", x)


@kind(2)
def instance_norm(w: Writer, x: str) -> str:
    layer = f"nn.InstanceNorm2d({w.shape(x)[1]}{settings(affine=sometimes(w, 40, True))})"
    return w.layer("inorm", layer, x)


@kind(3, "row", "last")
def layer_norm(w: Writer, x: str) -> str:
    features = w.shape(x)[-1]
    options = settings(elementwise_affine=sometimes(w, 15, False), bias=sometimes(w, 10, False))
    return w.layer("ln", f"nn.LayerNorm({features}{options})", x, permuted=w.kind(x) == "last")


@kind(3)
def local_response_norm(w: Writer, x: str) -> str:
    options = f"{w.source.integer(1, 5)}, alpha=0.1{settings(k=sometimes(w, 20, 2.0))}"
    if chance(w.source, 25):
        return w.line(f"F.local_response_norm({{0}}, {options})", x)
    return w.layer("lrn", f"nn.LocalResponseNorm({options})", x)


@kind(6)
def max_pool2d(w: Writer, x: str) -> str:
    options = _pool(w, x, dilation=sometimes(w, 10, 2))
    if chance(w.source, 30):
        return w.line(f"{choice(w.source, ('F', 'torch'))}.max_pool2d({{0}}, {options})", x)
    return w.layer("pool", f"nn.MaxPool2d({options})", x)


@kind(5)
def avg_pool2d(w: Writer, x: str) -> str:
    include = sometimes(w, 25, False)
    options = _pool(w, x, count_include_pad=include, divisor_override=sometimes(w, 10, 3))
    if chance(w.source, 30):
        return w.line(f"F.avg_pool2d({{0}}, {options})", x)
    return w.layer("pool", f"nn.AvgPool2d({options})", x)


@kind(3)
def adaptive_avg_pool2d(w: Writer, x: str) -> str:
    _, _, height, width = w.shape(x)
    size = choice(w.source, (1, 2, 3, (height, 1), (1, width), (2, 3), (None, 2)))
    if chance(w.source, 30):
        return w.line(f"F.adaptive_avg_pool2d({{0}}, {size})", x)
    return w.layer("pool", f"nn.AdaptiveAvgPool2d({size})", x)


@kind(2)
def mean_of_pixels(w: Writer, x: str) -> str:
    dims = choice(w.source, ("(2, 3)", "[2, 3]", "(-1, -2)", "dim=(-2, -1)"))
    keep = choice(w.source, ("", ", keepdim=True"))
    call = choice(w.source, ("{0}.mean(", "torch.mean({0}, "))
    return w.line(f"{call}{dims}{keep})", x)


@kind(5)
def resize(w: Writer, x: str) -> str:
    _, _, height, width = w.shape(x)
    w.at_most(x, 150)
    mode = choice(w.source, ("nearest", "bilinear"))
    corners = sometimes(w, 30, True) if mode == "bilinear" else None
    size = (w.source.integer(1, 2 * height), w.source.integer(1, 2 * width))
    form = w.source.integer(0, 3)
    if form == 0:
        return w.line(
            f"F.interpolate({{0}}, scale_factor=2{settings(mode=mode, align_corners=corners)})", x
        )
    if form == 1:
        return w.line(
            f"F.interpolate({{0}}, size={size}{settings(mode=mode, align_corners=corners)})", x
        )
    if form == 2:
        factors = (2, 1.5, 0.5, (2.0, 1.0), 3) if min(height, width) > 1 else (2, 3)
        factor = choice(w.source, factors)
        layer = f"nn.Upsample(scale_factor={factor}{settings(mode=mode, align_corners=corners)})"
        return w.layer("up", layer, x)
    kind_of = choice(w.source, ("UpsamplingNearest2d", "UpsamplingBilinear2d"))
    return w.layer("up", f"nn.{kind_of}(size={size})", x)


@kind(3, "map", "row", "last")
def dropout(w: Writer, x: str) -> str:
    """Dropout that drops nothing, or all: random masks cannot be compared."""
    last = w.kind(x) == "last"
    p = choice(w.source, (0.0, 0.0, 1.0)) if w.training else choice(w.source, (0.5, 0.1))
    if p == 1.0 and chance(w.source, 60):
        raise RejectedError("few networks are multiplied by zero")
    form = w.source.integer(0, 3)
    if form == 0:
        return w.line(f"F.dropout({{0}}, {p}, training={w.training})", x, permuted=last)
    if form == 1 and w.kind(x) == "map":
        return w.layer("drop", f"nn.Dropout2d({p})", x)
    if form == 2 and p < 1:
        return w.layer("drop", f"tvdnn.nn.StochasticDepth({p}, 'row')", x, permuted=last)
    return w.layer("drop", f"nn.Dropout({p})", x, permuted=last)


def _window(w: Writer, kernel: int | tuple[int, int], size: list[int]) -> dict[str, object]:
    """Stride, padding and dilation of a convolution that fits maps of this size."""
    stride = None if chance(w.source, 65) else both(w, 1, 3)
    padding: object = choice(w.source, (1, 0, "most", "valid", "same", 2))
    if padding == "same" and stride is not None:
        padding = 1
    if padding == "most":
        padding = tuple(side // 2 for side in sides(kernel))
    dilation = sometimes(w, 15, both(w, 1, 3))
    return {"stride": stride, "padding": padding, "dilation": dilation}


def _pool(w: Writer, x: str, **options: object) -> str:
    kernel = choice(w.source, (2, 3, (2, 1), (1, 2), (3, 2), 1))
    least = min(sides(kernel)) // 2
    given = {
        "stride": sometimes(w, 50, both(w, 1, 3)),
        "padding": sometimes(w, 30, least) if least else None,
        "ceil_mode": sometimes(w, 30, True),
    }
    return f"{kernel}{settings(**given, **options)}"


def _groups(w: Writer, c: int, out: int) -> int:
    if not chance(w.source, 25):
        return 1
    return choice(w.source, [g for g in range(1, min(c, out) + 1) if c % g == out % g == 0])


def param(w: Writer, shape: tuple[int, ...], scale: float) -> str:
    return w.member("p", f"nn.Parameter({scale} * torch.randn{shape})")


def _buffer(w: Writer, shape: tuple[int, ...], filled: str) -> str:
    return w.member("state", f"nn.Buffer(torch.{filled}{shape})")
