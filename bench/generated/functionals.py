"""The functions of layers on parameters and buffers of the network, and layers seldom drawn."""

import re

from bench.generated.kinds import kind, sides
from bench.generated.layers import param
from bench.generated.source import chance, choice
from bench.generated.writer import RejectedError, Writer

# Of maps; a parameter's shape stands in its place, whose C are the map's channels.
OF_MAPS = (
    "F.conv2d({0}, weight=<4, C, 1, 1>, bias=None, padding='valid')",
    "torch.conv2d({0}, <3, C, 2, 2>, stride=(2, 1), padding=1)",
    "F.conv_transpose2d({0}, <C, 2, 2, 2>, <2>, stride=2)",
    "torch.conv_transpose2d({0}, <C, 3, 1, 1>)",
    "F.group_norm({0}, C, <C>, <C>)",
    "torch.group_norm({0}, 1)",
    "F.instance_norm({0}, eps=1e-3)",
    "F.instance_norm({0}, weight=<C>, bias=<C>)",
    "torch.prelu({0}, <C>)",
    "{0}.prelu(<1>)",
    "F.pixel_shuffle({0}.repeat(1, 4, 1, 1), 2)",
    "torch.pixel_shuffle({0}.repeat(1, 4, 1, 1), upscale_factor=2)",
    "torch.pixel_unshuffle({0}, 1)",
    "F.dropout2d({0}, 0.0)",
    "F.dropout2d({0}, p=0.5, training=False)",
    "F.dropout(input={0}, p=0.3, training=False)",
    "F.max_pool2d(input={0}, kernel_size=1, stride=2)",
    "torch.max_pool2d({0}, 1, 2)",
    "F.avg_pool2d({0}, kernel_size=1)",
    "F.adaptive_avg_pool2d(input={0}, output_size=(None, 1))",
    "F.adaptive_avg_pool2d({0}, {0}.shape[2:])",
    "F.interpolate(input={0}, size={0}.shape[2:])",
    "F.interpolate({0}, None, 2.0, 'bilinear', True)",
    "F.interpolate({0}, scale_factor=1.5, recompute_scale_factor=True)",
    "F.local_response_norm(input={0}, size=2)",
    "F.glu(input={0}.repeat(1, 2, 1, 1), dim=1)",
    "F.layer_norm({0}.permute(0, 2, 3, 1), {0}.shape[1:2]).permute(0, 3, 1, 2)",
    "torch.layer_norm({0}.movedim(1, 3), (C,), <C>).movedim(3, 1)",
)
OF_ROWS = (
    "F.layer_norm({0}, (C,))",
    "torch.layer_norm({0}, [C], <C>, <C>, 1e-3)",
    "F.linear(input={0}, weight=<5, C>)",
    "F.prelu({0}, <C>)",
    "F.dropout({0}, 0.0)",
    "{0}.mean(1, keepdim=True).expand_as({0})",
)
CASTS = (
    "{0}.clone()",
    "{0}.float().to({0}.dtype)",
    "{0}.double().to({0}.dtype)",
    "{0}.to({0}.dtype)",
    "{0}.to(dtype={0}.dtype, copy=True)",
    "{0}.to({0})",
    "{0}.to({0}.device)",
    "{0}.cpu()",
    "{0}.type({0}.dtype)",
    "{0}.type_as({0})",
)


@kind(7)
def functional_layer(w: Writer, x: str) -> str:
    """The functions of layers, with parameters of the network or without."""
    return _with_parameters(w, choice(w.source, OF_MAPS), x)


@kind(2, "row")
def functional_layer_of_rows(w: Writer, x: str) -> str:
    return _with_parameters(w, choice(w.source, OF_ROWS), x)


def _with_parameters(w: Writer, text: str, x: str) -> str:
    """The call on `x`, with parameters of the shapes that the text names."""
    text = re.sub(r"\bC\b", str(w.shape(x)[1]), text)

    def held(shape: re.Match[str]) -> str:
        sizes = tuple(int(size) for size in shape[1].split(", "))
        return param(w, sizes, 0.3)

    return w.line(re.sub(r"<([^>]+)>", held, text), x)


@kind(3)
def other_pool2d(w: Writer, x: str) -> str:
    layers = (
        "nn.AdaptiveMaxPool2d(1)",
        "nn.AdaptiveMaxPool2d((2, 3))",
        "nn.AdaptiveMaxPool2d((None, 2))",
        "nn.LPPool2d(2, 2)",
        "nn.LPPool2d(2, (2, 1), stride=1)",
        "nn.LPPool2d(2, 2, ceil_mode=True)",
    )
    calls = ("F.adaptive_max_pool2d({0}, 2)", "F.adaptive_max_pool2d({0}, (1, None))")
    calls += ("F.lp_pool2d({0}.abs() + 0.1, 2.0, 2)", "F.lp_pool2d({0}.abs() + 0.1, 3, (1, 2), 1)")
    if chance(w.source, 50):
        return w.line(choice(w.source, calls), x)
    layer = choice(w.source, layers)
    source = w.line("{0}.abs() + 0.1", x) if "LPPool" in layer else x
    return w.layer("pool", layer, source)


@kind(2)
def padding_layer(w: Writer, x: str) -> str:
    if w.values[x][0].numel() > 600:
        raise RejectedError("large enough")
    texts = (
        "nn.ConstantPad2d(1, 0.5)",
        "nn.ConstantPad2d((0, 1, 2, 0), 0.0)",
        "nn.ZeroPad2d((1, 0, 0, 1))",
        "nn.ReplicationPad2d((1, 0, 0, 2))",
    )
    return w.layer("pad", choice(w.source, texts), x)


@kind(3)
def filters_in_buffers(w: Writer, x: str) -> str:
    """Convolutions whose weight, and perhaps bias, is a buffer: fixed filters, BlurPool's."""
    c = w.shape(x)[1]
    taps = choice(w.source, ((3, 3), (1, 1), (2, 2)))
    by_channel = chance(w.source, 60)
    out = c if by_channel else 4
    shape = (out, 1 if by_channel else c, *sides(taps))
    weight = w.member("filters", f"nn.Buffer(0.3 * torch.randn{shape})")
    bias = w.member("shift", f"nn.Buffer(torch.randn({out}))") if chance(w.source, 40) else "None"
    options = f", groups={c}" if by_channel else ""
    options += choice(w.source, ("", ", padding=1", ", stride=2, padding=1"))
    return w.line(f"F.conv2d({{0}}, {weight}, {bias}{options})", x)


@kind(3)
def views_of_parameters(w: Writer, x: str) -> str:
    """A parameter or buffer that forward gives another shape: scale[:, None, None], p.view."""
    c = w.shape(x)[1]
    held = w.member("p", f"nn.{choice(w.source, ('Parameter', 'Buffer'))}(torch.randn({c}))")
    views = (f"{held}.view(1, {c}, 1, 1)", f"{held}[:, None, None]", f"{held}.reshape(-1, 1, 1)")
    texts = ("{0} * %s", "%s + {0}", "{0} - %s")
    return w.line(choice(w.source, texts) % choice(w.source, views), x)


@kind(2)
def views_of_whole_maps_of_parameters(w: Writer, x: str) -> str:
    c = w.shape(x)[1]
    held = w.member("p", f"nn.Parameter(torch.randn(1, {c}, 1, 1))")
    views = (f"{held}.view({c}, 1, 1)", f"{held}.view(-1).view(1, {c}, 1, 1)", f"{held}.squeeze(0)")
    return w.line(choice(w.source, ("{0} * %s", "%s + {0}")) % choice(w.source, views), x)


@kind(2, "map", "row", "line")
def cast_or_copy(w: Writer, x: str) -> str:
    """Casts to the map's own type, and copies: an engine computes in one type."""
    return w.line(choice(w.source, CASTS), x)
