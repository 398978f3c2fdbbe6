"""Motifs of sums and of what is fused: terms that add up in an order, or behind what they read."""

from bench.generated.kinds import kind
from bench.generated.layers import norm_of
from bench.generated.motifs import conv_to, normalized
from bench.generated.source import chance, choice
from bench.generated.writer import Writer

FUNCTIONS = ("torch.tanh({0})", "F.relu({0})", "torch.sigmoid({0})", "{0} * 0.5")
SUMS = ("{0} + {1}", "{1} + {0}")


def read(w: Writer, x: str) -> str:
    """A branch of `x` in its shape: a function, a convolution or a normalization of it."""
    form = w.source.integer(0, 3)
    if form == 0:
        return conv_to(w, x, w.shape(x)[1])
    if form == 1:
        return normalized(w, x)
    return w.line(choice(w.source, FUNCTIONS), x)


def added(w: Writer, first: str, second: str) -> str:
    return w.line(choice(w.source, SUMS), first, second)


@kind(5)
def three_terms(w: Writer, x: str) -> str:
    """n = bn(h); r = tanh(h); (n + r) + h: the gradient of h has three terms, whose order counts.

    Where the normalization is fused with its residual, it moves behind it.
    """
    h = conv_to(w, x, choice(w.source, (4, 3, 8)))
    first, second = normalized(w, h), read(w, h)
    total = added(w, first, second)
    total = w.line("F.relu({0})", total) if chance(w.source, 40) else total
    third = h if chance(w.source, 60) else read(w, h)
    return w.line(choice(w.source, (*SUMS, "{0} * {1}")), total, third)


@kind(4)
def sum_of_two_read_before(w: Writer, x: str) -> str:
    """g; h; t = tanh(h); s = h + g; conv(s) + t: one map is the gradient of both terms of s."""
    c = w.shape(x)[1]
    g, h = conv_to(w, x, c), conv_to(w, x, c)
    if chance(w.source, 50):
        g, h = (w.line(choice(w.source, FUNCTIONS), each) for each in (g, h))
    terms = [h, g] if chance(w.source, 70) else [g, h]
    other = read(w, terms[0])
    total = added(w, *terms)
    return added(w, read(w, total), other)


@kind(3, "map", "row")
def norm_of_two_maps(w: Writer, x: str) -> str:
    """a = bn(x); b = bn(f(x)); (b + r) + a: statistics of one layer change twice, in order."""
    norm = norm_of(w, x)
    first = w.line(f"{norm}({{0}})", x)
    branch = w.line(choice(w.source, FUNCTIONS), x)
    second = w.line(f"{norm}({{0}})", branch)
    if chance(w.source, 60):
        first = added(w, first, w.line(choice(w.source, FUNCTIONS), x))
    elif chance(w.source, 60):
        second = w.line("torch.tanh({0})", second)
    return added(w, first, second)


@kind(3)
def pool_over_the_edge(w: Writer, x: str) -> str:
    """A convolution, ReLU and a max pooling of 2x2 windows, which may hang over the edge."""
    value = conv_to(w, x, choice(w.source, (4, 8, 4, 3)), choice(w.source, (3, 1)))
    value = w.line("F.relu({0})", value)
    ceil = choice(w.source, (", ceil_mode=True", ", ceil_mode=True", "", ", stride=1"))
    return w.line(f"F.max_pool2d({{0}}, 2{ceil})", value)


@kind(5)
def padded_convolution(w: Writer, x: str) -> str:
    """A pad of zeros, even or not, that a convolution or a pooling reads."""
    left, right, top, bottom = (w.source.integer(0, 2) for _ in range(4))
    pads = (left, right, top, top if chance(w.source, 50) else bottom)
    value = w.line(f"F.pad({{0}}, {pads!r})", x)
    if chance(w.source, 25):
        return w.line("F.avg_pool2d({0}, 2)", value)
    return w.layer("conv", f"nn.Conv2d({w.shape(x)[1]}, {choice(w.source, (4, 3))}, 3)", value)


@kind(3)
def view_beside_a_range(w: Writer, x: str) -> str:
    """Some channels of a map, and all of them in a view of groups."""
    value = conv_to(w, x, choice(w.source, (4, 8, 16, 8)))
    half = w.shape(value)[1] // 2
    sides = w.shape(value)[2:]
    part = w.line(choice(w.source, (f"{{0}}[:, :{half}] * 2", f"{{0}}[:, {half}:].tanh()")), value)
    groups = (2, half) if chance(w.source, 50) else (half, 2)
    view = w.line(f"{{0}}.view(-1, {groups[0]}, {groups[1]}, {sides[0]}, {sides[1]})", value)
    dim = groups.index(2) + 1 if half != 2 or chance(w.source, 50) else 1
    reduced = w.line(
        choice(w.source, ("{0}.amax(%d)", "{0}.sum(%d)", "{0}.mean(dim=%d)")) % dim, view
    )
    return added(w, part, reduced)


@kind(3)
def broadcast_difference(w: Writer, x: str) -> str:
    """p - h or h - p: one of the terms has fewer values than the difference."""
    c = w.shape(x)[1]
    h = conv_to(w, x, c) if chance(w.source, 60) else x
    form = w.source.integer(0, 2)
    if form == 0:
        shape = choice(w.source, ((c, 1, 1), (1, c, 1, 1), (1,), (1, 1, 1, 1)))
        other = w.member("p", f"nn.Parameter(torch.randn({shape!r}))")
        return w.line(f"{other} - {{0}}" if chance(w.source, 60) else f"{{0}} - {other}", h)
    text = "{0}.mean((2, 3), keepdim=True)" if form == 1 else "{0}.mean(1, keepdim=True)"
    return w.line(choice(w.source, ("{0} - {1}", "{1} - {0}")), h, w.line(text, x))
