"""Rows of values [N, C, L]: convolutions, poolings, norms, pads, resizings and reductions."""

from math import prod

from bench.generated.kinds import channels, kind, settings, sometimes
from bench.generated.layers import norm_of, param
from bench.generated.source import chance, choice
from bench.generated.writer import RejectedError, Writer

LAYER = "nn.Upsample(scale_factor=2, mode='linear')"
LONG = 60  # values of a row that is not made longer
POOLS = (
    "nn.MaxPool1d(2)",
    "nn.MaxPool1d(3, stride=1, padding=1)",
    "nn.MaxPool1d(2, stride=1, dilation=2)",
    "nn.MaxPool1d(2, stride=2, ceil_mode=True)",
    "nn.AvgPool1d(2)",
    "nn.AvgPool1d(3, stride=2, padding=1, count_include_pad=False)",
    "nn.AvgPool1d((2,), ceil_mode=True)",
    "nn.AdaptiveAvgPool1d(1)",
    "nn.AdaptiveAvgPool1d(2)",
    "nn.AdaptiveMaxPool1d(1)",
    "nn.AdaptiveMaxPool1d(2)",
    "nn.LPPool1d(2, 2)",
    "nn.LPPool1d(2, 3, stride=1)",
)
POOL_CALLS = (
    "F.max_pool1d({0}, 2)",
    "torch.max_pool1d({0}, 3, stride=2, padding=1)",
    "F.avg_pool1d({0}, 2, stride=1)",
    "torch.avg_pool1d({0}, (2,))",
    "F.adaptive_avg_pool1d({0}, 2)",
    "torch.adaptive_avg_pool1d({0}, 1)",
    "F.adaptive_max_pool1d({0}, 1)",
    "F.lp_pool1d({0}, 2, 2)",
)
PADS = (
    "nn.ZeroPad1d(1)",
    "nn.ConstantPad1d((1, 2), 0.5)",
    "nn.ReflectionPad1d(1)",
    "nn.ReplicationPad1d((0, 2))",
    "nn.CircularPad1d(1)",
)
SIZES = (
    "F.interpolate({0}, scale_factor=2)",
    "F.interpolate({0}, size=7)",
    "F.interpolate({0}, None, 1.5, 'linear')",
    "F.interpolate({0}, scale_factor=(2.0,), mode='linear', align_corners=True)",
    "F.interpolate({0}, size=(5,), mode='linear')",
    "F.interpolate({0}, scale_factor=1.4, recompute_scale_factor=True)",
)


@kind(5, "line")
def conv1d(w: Writer, x: str) -> str:
    """A layer, or its function on parameters or buffers of the network."""
    c = w.shape(x)[1]
    out, kernel = channels(w), choice(w.source, (3, 1, 2, 5))
    stride = sometimes(w, 30, w.source.integer(1, 3))
    given = {
        "stride": stride,
        "padding": choice(w.source, (1, 0, kernel // 2, "valid", "same" if stride is None else 2)),
        "dilation": sometimes(w, 15, 2),
        "groups": sometimes(w, 20, c if out % c == 0 else 1),
    }
    if chance(w.source, 30):
        weight = param(w, (out, c // (given["groups"] or 1), kernel), 0.3)
        bias = choice(w.source, ("", f", {param(w, (out,), 0.3)}"))
        return w.line(f"F.conv1d({{0}}, {weight}{bias}{settings(**given)})", x)
    options = settings(**given, bias=sometimes(w, 30, False), padding_mode=_padding_mode(w, given))
    return w.layer("conv", f"nn.Conv1d({c}, {out}, {kernel}{options})", x)


def _padding_mode(w: Writer, given: dict[str, object]) -> object:
    modes = ("reflect", "replicate", "circular")
    return sometimes(w, 15, choice(w.source, modes)) if given["padding"] == 1 else None


@kind(2, "line")
def conv_transpose1d(w: Writer, x: str) -> str:
    w.at_most(x, LONG)
    c = w.shape(x)[1]
    out, kernel, stride = channels(w), w.source.integer(1, 3), w.source.integer(1, 3)
    options = settings(
        stride=stride,
        padding=sometimes(w, 30, min(1, kernel - 1)),
        output_padding=sometimes(w, 30, w.source.integer(0, stride - 1)),
        dilation=sometimes(w, 15, 2),
        groups=sometimes(w, 15, c if out % c == 0 else 1),
    )
    if chance(w.source, 30):
        weight = param(w, (c, out, kernel), 0.3)
        return w.line(f"F.conv_transpose1d({{0}}, {weight}, stride={stride})", x)
    layer = f"nn.ConvTranspose1d({c}, {out}, {kernel}{options})"
    return w.layer("conv", layer, x)


@kind(8, "line")
def pool1d(w: Writer, x: str) -> str:
    if chance(w.source, 40):
        return w.line(choice(w.source, POOL_CALLS), x)
    return w.layer("pool", choice(w.source, POOLS), x)


@kind(3, "line")
def norm_of_a_line(w: Writer, x: str) -> str:
    _, c, length = w.shape(x)
    if length < 2:
        raise RejectedError("one value has no variance")
    groups = choice(w.source, [g for g in range(1, c + 1) if c % g == 0])
    form = w.source.integer(0, 3)
    if form == 0:
        return w.line(f"{norm_of(w, x)}({{0}})", x)
    if form == 1:
        return w.layer("gn", f"nn.GroupNorm({groups}, {c})", x)
    if form == 2:
        return w.layer("inorm", f"nn.InstanceNorm1d({c}, affine=True)", x)
    return w.line(choice(w.source, (f"F.group_norm({{0}}, {groups})", "F.instance_norm({0})")), x)


@kind(3, "line")
def pad1d(w: Writer, x: str) -> str:
    w.at_most(x, LONG)
    calls = ("F.pad({0}, (1, 1))", "F.pad({0}, (0, 1, 0, 2))", "F.pad({0}, (2, 0), 'replicate')")
    if chance(w.source, 40):
        return w.line(choice(w.source, calls), x)
    return w.layer("pad", choice(w.source, PADS), x)


@kind(3, "line")
def resize1d(w: Writer, x: str) -> str:
    w.at_most(x, LONG)
    if chance(w.source, 20):
        return w.layer("up", LAYER, x)
    return w.line(choice(w.source, SIZES), x)


@kind(4, "line")
def reduction_of_a_line(w: Writer, x: str) -> str:
    """To a row, or to a row of one value."""
    texts = ("{0}.mean(2)", "{0}.sum(-1)", "{0}.amax(2)", "{0}.mean(1)", "{0}.amax(1)")
    kept = ("{0}.mean(2, keepdim=True)", "{0}.mean(1, keepdim=True)", "{0}.amin(2, keepdim=True)")
    if chance(w.source, 40):
        return w.line("{0} + {1}", x, w.line(choice(w.source, kept), x))
    return w.line(choice(w.source, texts), x)


@kind(2, "line")
def row_of_a_line(w: Writer, x: str) -> str:
    if prod(w.shape(x)[1:]) > 700:
        raise RejectedError("too many features")
    return w.line(choice(w.source, ("{0}.flatten(1)", "torch.flatten({0}, 1)", "{0}[:, :, 0]")), x)


@kind(3, "line")
def part_of_a_line(w: Writer, x: str) -> str:
    _, c, length = w.shape(x)
    start = w.source.integer(0, length - 1)
    texts = (
        f"{{0}}[:, :, {start}:]",
        "{0}[..., ::2]",
        f"{{0}}.narrow(2, {start}, {length - start})",
        f"{{0}}[:, :{max(1, c - 1)}]",
        "torch.flip({0}, [2])",
        "{0}.roll(1, 2)",
        "torch.cat([{0}, {0} * 0.5], 1)",
        "torch.cat([{0}, {0}.tanh()], 2)",
        "{0}.repeat(1, 2, 1)",
    )
    return w.line(choice(w.source, texts), x)


@kind(2, "line")
def map_of_a_line(w: Writer, x: str) -> str:
    texts = ("{0}.unsqueeze(2)", "{0}[:, :, None]", "torch.unsqueeze({0}, 3)", "{0}.unsqueeze(-1)")
    return w.line(choice(w.source, texts), x)


@kind(4, "line")
def broadcast_on_a_line(w: Writer, x: str) -> str:
    """A parameter or buffer by channel or by place, or softmax over either."""
    _, c, length = w.shape(x)
    shape = choice(w.source, ((c, 1), (length,), (1, c, 1), (c, length), ()))
    held = w.member("p", f"nn.{choice(w.source, ('Parameter', 'Buffer'))}(torch.randn({shape}))")
    texts = (f"{{0}} * {held}", f"{held} + {{0}}", "{0}.softmax(1)", "F.log_softmax({0}, dim=2)")
    return w.line(choice(w.source, texts), x)
