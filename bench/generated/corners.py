"""Constellations that other kinds draw seldom, each drawn here for certain."""

import re

from bench.generated.kinds import kind
from bench.generated.motifs import conv_to, normalized
from bench.generated.source import chance, choice
from bench.generated.writer import Writer

FROZEN = (  # layers, and what of them trains
    ("nn.Conv2d(C, C, 3, padding=1, groups=C)", "weight"),
    ("nn.Conv2d(C, C, 3, padding=1)", "weight"),
    ("nn.ConvTranspose2d(C, 4, 2, 2)", "weight"),
    ("nn.PReLU(C)", "weight"),
    ("nn.PReLU()", "weight"),
    ("nn.GroupNorm(1, C)", "weight"),
    ("nn.BatchNorm2d(C)", "bias"),
)
POWERS = (
    "({0}.abs() + 0.5) ** -1",
    "({0}.abs() + 0.5).pow(-1)",
    "torch.pow({0}.square() + 0.5, -1)",
    "{0} ** 1",
)
NAMED = (
    "{0} * {0}.max(1, keepdim=True).values",
    "{0} - torch.min({0}, dim=2, keepdim=True).values",
    "torch.max({0}, 1, keepdim=True).values",
)
GATED = ("{0} * {1}", "{1} * {0}", "{0} + {1}", "{1} + {0}")
SEVERAL_READ = ("F.softmax({0}, 1)", "{0}.amax(1, keepdim=True)", "{0}.flatten(1, 2)")


@kind(3)
def frozen_layer(w: Writer, x: str) -> str:
    """A layer of which a parameter is not trained, behind one that is."""
    value = conv_to(w, x, w.shape(x)[1]) if chance(w.source, 70) else x
    text, part = choice(w.source, FROZEN)
    layer = w.member("frozen", re.sub(r"\bC\b", str(w.shape(x)[1]), text))
    part = choice(w.source, (f".{part}", ""))
    w.configure(f"net.{layer[5:]}{part}.requires_grad_(False)")
    return w.line(f"{layer}({{0}})", value)


@kind(1, "row", "last")
def frozen_layer_norm(w: Writer, x: str) -> str:
    size = w.shape(x)[-1]
    layer = w.member("frozen", f"nn.LayerNorm({size})")
    w.configure(f"net.{layer[5:]}.requires_grad_(False)")
    return w.line(f"{layer}({{0}})", x, permuted=w.kind(x) == "last")


@kind(3)
def gates_of_which_one_side_trains(w: Writer, x: str) -> str:
    """Gates and maps, of which one, both or none get a gradient."""
    maps = conv_to(w, x, w.shape(x)[1])
    gates = w.line("torch.sigmoid({0}.mean((2, 3), keepdim=True))", conv_to(w, x, w.shape(x)[1]))
    form = w.source.integer(0, 3)
    if form in (1, 3):
        gates = w.line("{0}.detach()", gates)
    if form in (2, 3):
        maps = w.line("{0}.detach()", maps)
    return w.line(choice(w.source, GATED), maps, gates)


@kind(2)
def power(w: Writer, x: str) -> str:
    return w.line(choice(w.source, POWERS), x)


@kind(2)
def largest_by_name(w: Writer, x: str) -> str:
    return w.line(choice(w.source, NAMED), x)


@kind(2)
def linear_over_pixels(w: Writer, x: str) -> str:
    """A linear layer of maps as [N, H, W, C], as transformers have them."""
    c, out = w.shape(x)[1], choice(w.source, (4, 8, 3))
    turned = w.line("{0}.permute(0, 2, 3, 1)", x, permuted=True)
    if chance(w.source, 50):
        linear = f"nn.Linear({c}, {out}, bias={chance(w.source, 70)})"
        made = w.layer("fc", linear, turned, permuted=True)
    else:
        weight = w.member("p", f"nn.Parameter(0.3 * torch.randn({out}, {c}))")
        made = w.line(f"F.linear({{0}}, {weight})", turned, permuted=True)
    return w.line("{0}.permute(0, 3, 1, 2)", made)


@kind(2, "line")
def layers_in_a_row_of_lines(w: Writer, x: str) -> str:
    """Layers of [N, C, L], each of which reads what the one before has made."""
    c = w.shape(x)[1]
    texts = (f"nn.PReLU({c})", f"nn.Conv1d({c}, {c}, 1)", "nn.PReLU()", "nn.AvgPool1d(1)")
    for _ in range(w.source.integer(2, 3)):
        x = w.layer("part", choice(w.source, texts), x)
    return x


@kind(2)
def layers_in_a_row_of_pixels(w: Writer, x: str) -> str:
    """The same layers over a map's pixels."""
    return layers_in_a_row_of_lines(w, w.line("{0}.flatten(2)", x))


@kind(2)
def parts_of_a_view(w: Writer, x: str) -> str:
    """Channels of a map whose pixels are counted otherwise: the parts lie in the map."""
    n, c, height, width = w.shape(x)
    value = conv_to(w, x, 2 * c)
    viewed = w.line(f"{{0}}.view({n}, {2 * c}, {height * width}, 1)", value)
    first, second = w.parts("{0}.chunk(2, 1)", viewed, count=2)
    activated = w.line("torch.relu({0})", first)
    second = w.line(choice(w.source, ("torch.tanh({0})", "torch.relu({0})")), second)
    return w.line("torch.cat([{0}, {1}], 1)", activated, second)


@kind(2)
def channels_of_a_view(w: Writer, x: str) -> str:
    """A range of the channels of a view with other channels, or with the map's own."""
    n, c, height, width = w.shape(x)
    shapes = [(n, c, width, height), (n, c * height, 1, width), (n, c * height * width, 1, 1)]
    viewed = w.line(f"{{0}}.reshape{choice(w.source, shapes)}", conv_to(w, x, c))
    return w.line(choice(w.source, ("{0}[:, :1]", "{0}[:, 0].unsqueeze(1)", "{0}[:, -1:]")), viewed)


@kind(2)
def inner_concatenation_read_otherwise(w: Writer, x: str) -> str:
    """cat([f, h]) inside cat([f, h, k]), where something reads it that takes no range."""
    f, h, k = (conv_to(w, x, choice(w.source, (4, 8, 3))) for _ in range(3))
    inner = w.line("torch.cat([{0}, {1}], 1)", f, h)
    outer = w.line("torch.cat([{0}, {1}, {2}], 1)", f, h, k)
    other = w.line(choice(w.source, SEVERAL_READ), inner)
    w.line("{0} * 0.5", other)
    return normalized(w, outer) if chance(w.source, 50) else outer


@kind(1)
def bottlenecks(w: Writer, x: str) -> str:
    """ResNet's blocks of 1x1 convolutions, wide enough to add the last term of a gradient."""
    w.at_most(x, 64)
    layers = "nn.Sequential(nn.Conv2d({0}, {1}, 1, bias=False), nn.BatchNorm2d({1}))"
    value = conv_to(w, x, 128)
    for _ in range(2):
        first = w.member("wide", layers.format(128, 64))
        last = w.member("wide", layers.format(64, 128))
        branch = w.line(f"{last}(F.relu({first}({{0}})))", value)
        value = w.line("F.relu({0} + {1})", branch, value)
    return conv_to(w, value, 4)
