"""Motifs: the constellations in which tracing and fusion have gone wrong, drawn on purpose."""

import re

from bench.generated.kinds import KINDS, kind
from bench.generated.layers import norm_of
from bench.generated.source import chance, choice
from bench.generated.writer import RejectedError, Writer

LAYER = re.compile(r"\bnn\.(Conv|Linear|BatchNorm)")


def conv_to(w: Writer, x: str, out: int, kernel: int = 1) -> str:
    """A convolution of `x` to `out` channels that keeps its size."""
    padding = f", padding={kernel // 2}" if kernel > 1 else ""
    return w.layer("conv", f"nn.Conv2d({w.shape(x)[1]}, {out}, {kernel}{padding})", x)


def normalized(w: Writer, x: str) -> str:
    return w.line(f"{norm_of(w, x)}({{0}})", x)


def term(w: Writer, x: str) -> str:
    """A term of a sum over `x`: it, or what convolution, normalization or ReLU make of it."""
    form = w.source.integer(0, 6)
    value = conv_to(w, x, w.shape(x)[1], choice(w.source, (1, 3))) if form in (1, 2, 3) else x
    value = normalized(w, value) if form in (2, 3, 4, 5) else value
    return w.line("F.relu({0})", value) if form in (3, 5, 6) else value


@kind(10)
def normalized_terms(w: Writer, x: str) -> str:
    """relu(bn1(a)) + bn2(b), (bn1(a) + bn2(b)) + bn3(c), h + (h + bn(h)): RepVGG, HRNet."""
    total = term(w, x)
    for _ in range(w.source.integer(1, 3)):
        other = term(w, x) if chance(w.source, 70) else w.pick([x, *w.alike(x)])
        pair = (total, other) if chance(w.source, 50) else (other, total)
        total = w.line("{0} + {1}", *pair)
    return w.line("torch.relu({0})", total) if chance(w.source, 40) else total


@kind(5)
def residual_with_downsample(w: Writer, x: str) -> str:
    out = choice(w.source, (4, 8, 6))
    stride = choice(w.source, (1, 2))
    c = w.shape(x)[1]
    first = f"nn.Conv2d({c}, {out}, 3, stride={stride}, padding=1, bias=False)"
    branch = w.layer("conv", first, x)
    branch = w.line("F.relu({0})", normalized(w, branch))
    branch = normalized(w, conv_to(w, branch, out, 3))
    skip = w.member("conv", f"nn.Conv2d({c}, {out}, 1, stride={stride}, bias=False)")
    skipped = normalized(w, w.line(f"{skip}({{0}})", x))
    if chance(w.source, 50):
        w.change("{0} += {1}", branch, skipped)
        return w.line("F.relu({0}, inplace=True)", branch)
    return w.line("F.relu({0} + {1})", branch, skipped)


@kind(6)
def nested_concatenation(w: Writer, x: str) -> str:
    """cat([f, h]) read by a normalization, then cat([f, h, k]) in a sum or read again."""
    sizes = [choice(w.source, (4, 3, 5, 12, 2, 1)) for _ in range(3)]
    f, h, k = (conv_to(w, x, size) for size in sizes)
    if chance(w.source, 30):
        f, sizes[0] = x, w.shape(x)[1]
    inner = w.line("torch.cat([{0}, {1}], 1)", f, h)
    if chance(w.source, 50):
        k = w.line("F.relu({0})", normalized(w, inner))
        k = conv_to(w, k, sizes[2])
    else:
        inner = normalized(w, inner)
    outer = w.line("torch.cat([{0}, {1}, {2}], 1)", f, h, k)
    if chance(w.source, 60):
        skip = conv_to(w, x, sum(sizes))
        outer = w.line(choice(w.source, ("{0} + {1}", "{1} + {0}")), outer, skip)
    elif chance(w.source, 50):
        outer = w.line("torch.cat([{0}, {1}], 1)", outer, inner)
    return normalized(w, outer) if chance(w.source, 40) else outer


@kind(4)
def dense_block(w: Writer, x: str) -> str:
    growth, features = choice(w.source, (2, 4, 1)), [x]
    for _ in range(w.source.integer(2, 3)):
        listed = ", ".join(f"{{{number}}}" for number in range(len(features)))
        joined = w.line(f"torch.cat([{listed}], 1)", *features)
        read = w.line("F.relu({0})", normalized(w, joined))
        features.append(conv_to(w, read, growth, 3))
    listed = ", ".join(f"{{{number}}}" for number in range(len(features)))
    return w.line(f"torch.cat([{listed}], 1)", *features)


@kind(4)
def inverted_block(w: Writer, x: str) -> str:
    """Pointwise convolutions behind a normalization, an activation and a gate, which they read."""
    inner, acts = choice(w.source, (16, 96, 32, 20)), ("F.relu", "F.silu", "F.hardswish", "F.relu6")
    value = normalized(w, conv_to(w, x, inner))
    if chance(w.source, 70):
        value = w.line(f"{choice(w.source, acts)}({{0}})", value)
    if chance(w.source, 50):
        value = w.layer("conv", f"nn.Conv2d({inner}, {inner}, 3, padding=1, groups={inner})", value)
        value = w.line(f"{choice(w.source, acts)}({{0}})", normalized(w, value))
    if chance(w.source, 40):
        mean = w.line("{0}.mean([2, 3], keepdim=True)", value)
        value = w.line("{0} * torch.sigmoid({1})", value, conv_to(w, mean, inner))
    other = value if chance(w.source, 15) else ""
    value = conv_to(w, value, choice(w.source, (16, 8, inner, 5)))
    if other:
        return w.line("torch.cat([{0}, {1}], 1)", value, other)
    return conv_to(w, normalized(w, value), 8) if chance(w.source, 40) else value


@kind(3)
def scaled_branch(w: Writer, x: str) -> str:
    """x + scale * branch(x), in either order: a residual, and a learned scale of each channel."""
    c, total = w.shape(x)[1], x
    scale = w.member("scale", f"nn.Parameter(torch.randn({c}, 1, 1))")
    for _ in range(w.source.integer(1, 2)):
        branch = w.line(f"{scale} * {{0}}", term(w, total))
        if chance(w.source, 30):
            w.change("{0} += {1}", branch, total)
            total = branch
        else:
            text = choice(w.source, ("{0} + {1}", "{1} + {0}"))
            total = w.line(text, branch, branch if chance(w.source, 10) else total)
        if chance(w.source, 50):
            scale = w.member("scale", f"nn.Parameter(torch.randn({c}, 1, 1))")
    return w.line("{0} * {1}", total, branch) if chance(w.source, 10) else total


@kind(4)
def shared_layers(w: Writer, x: str) -> str:
    """Sequential(c, r, c, r): modules, and with them parameters, that are used twice."""
    c = w.shape(x)[1]
    conv = w.member("conv", f"nn.Conv2d({c}, {c}, 3, padding=1)")
    act = w.member("act", choice(w.source, ("nn.ReLU()", "nn.Tanh()")))
    form = w.source.integer(0, 3)
    if form == 0:
        return w.layer("chain", f"nn.Sequential({conv}, {act}, {conv}, {act})", x)
    if form == 1:
        again = w.member("again", conv)
        return w.line(f"{again}({act}({conv}({{0}})))", x)
    if form == 2:
        norm = norm_of(w, x)
        return w.line(f"{norm}({conv}({norm}({conv}({{0}}))))", x)
    tied = w.member("conv", f"nn.Conv2d({c}, {c}, 3, padding=1)")
    w.configure(f"net.{tied[5:]}.weight = net.{conv[5:]}.weight")
    return w.line(f"{tied}({act}({conv}({{0}})))", x)


@kind(2, "row")
def shared_linear(w: Writer, x: str) -> str:
    features = w.shape(x)[1]
    layer = w.member("fc", f"nn.Linear({features}, {features})")
    return w.line(f"{layer}(F.relu({layer}({{0}})))", x)


@kind(5, changes=True)
def change_of_an_alias(w: Writer, x: str) -> str:
    """h += y while another name or a view of h is read later."""
    n, c, height, width = w.shape(x)
    h = conv_to(w, x, c)
    views = ("{0}", f"{{0}}.view({n}, {c}, {height * width})", "{0}.view_as({0})", "{0}.detach()")
    view = w.line(choice(w.source, (*views, "{0}[:, :1]", "{0}.flatten(1)")), h)
    changed, other = (h, x) if chance(w.source, 70) or w.shape(view) != w.shape(x) else (view, x)
    texts = ("{0} += {1}", "{0} *= 2", "{0}.add_({1})", "{0}.mul_(0.5)", "{0} -= {1}")
    text = choice(w.source, texts)
    if "{1}" not in text and chance(w.source, 50):  # a part, or the map through a view
        changed = view
    w.change(text, *((changed, other) if "{1}" in text else (changed,)))
    if w.kind(view) == "line":
        view = w.line(f"{{0}}.view({n}, {c}, {height}, {width})", view)
    if w.kind(view) == "row":
        view = w.line(f"{{0}}.view({n}, {c}, {height}, {width})", view)
    return w.line("torch.cat([{0}, {1}], 1)", h, view)


@kind(3)
def squeeze_and_excite(w: Writer, x: str) -> str:
    c = w.shape(x)[1]
    inner = max(1, c // 2)
    pool = choice(w.source, ("F.adaptive_avg_pool2d({0}, 1)", "{0}.mean((2, 3), keepdim=True)"))
    gates = w.line(pool, x)
    gates = w.line("F.relu({0})", conv_to(w, gates, inner))
    end = choice(w.source, ("torch.sigmoid({0})", "F.hardsigmoid({0})", "{0}.sigmoid()"))
    gates = w.line(end, conv_to(w, gates, c))
    return w.line(choice(w.source, ("{0} * {1}", "{1} * {0}")), x, gates)


@kind(3)
def squeeze_by_rows(w: Writer, x: str) -> str:
    """Squeeze and excitation by linear layers: [N, C] viewed as [N, C, 1, 1]."""
    n, c, *_ = w.shape(x)
    pooled = w.line("{0}.mean((2, 3))", x)
    gates = w.layer("fc", f"nn.Linear({c}, {c})", pooled)
    views = (f"{{0}}.view({n}, {c}, 1, 1)", "{0}[:, :, None, None]")
    gates = w.line(f"torch.sigmoid({choice(w.source, views)})", gates)
    return w.line("{0} * {1}", x, gates)


@kind(3)
def view_between_layers(w: Writer, x: str) -> str:
    """A map whose pixels are counted otherwise, read by a layer that looks at neighbours."""
    n, c, height, width = w.shape(x)
    pixels = height * width
    rows = choice(w.source, [r for r in range(1, pixels + 1) if pixels % r == 0])
    viewed = w.line(f"{{0}}.view({n}, {c}, {rows}, {pixels // rows})", x)
    names = ("resize", "adaptive_avg_pool2d", "max_pool2d", "avg_pool2d", "conv2d")
    names += ("conv_transpose2d", "instance_norm", "batch_norm", "same_conv2d")
    return KINDS[choice(w.source, names)].draw(w, viewed)


@kind(2, "row")
def row_as_a_map(w: Writer, x: str) -> str:
    """[N, F] viewed as [N, F, 1, 1], then convolved or made larger."""
    n, f = w.shape(x)
    viewed = w.line(f"{{0}}.view({n}, {f}, 1, 1)", x)
    names = ("conv2d", "resize", "conv_transpose2d", "pointwise_conv2d")
    return KINDS[choice(w.source, names)].draw(w, viewed)


@kind(3)
def dead_branch(w: Writer, x: str) -> str:
    """Layers that nothing reads; a normalization among them still changes its statistics."""
    value = conv_to(w, x, 3) if chance(w.source, 60) else x
    for _ in range(w.source.integer(1, 2)):
        value = normalized(w, value) if chance(w.source, 60) else w.line("F.relu({0})", value)
    w.dead.add(value)
    return x


@kind(2)
def depthwise_separable(w: Writer, x: str) -> str:
    value = KINDS["conv2d_depthwise"].draw(w, x)
    value = w.line(choice(w.source, ("F.relu6({0})", "F.hardswish({0})")), normalized(w, value))
    return normalized(w, KINDS["pointwise_conv2d"].draw(w, value))


@kind(3, "map", "row")
def read_many_times(w: Writer, x: str) -> str:
    """One map that several layers and sums read."""
    total = x
    for _ in range(w.source.integer(2, 4)):
        text = choice(w.source, ("F.relu({0})", "torch.tanh({0})", "{0} * 0.5", "{0}"))
        total = w.line("{0} + {1}", total, w.line(text, x))
    return total


def stopped(w: Writer, x: str) -> str:
    """A value that autograd does not follow, or one that is detached only once it is there."""
    text = choice(w.source, ("{0}.detach()", "{0}.data", "{0} * 0.5", "{0} * 0.5"))
    value = w.line(text, x)
    if text == "{0} * 0.5":
        w.change("{0}.detach_()", value)
    return value


@kind(3, "map", "row")
def without_gradient(w: Writer, x: str) -> str:
    """A region without gradients or a detached value, which autograd does not follow."""
    form = w.source.integer(0, 2)
    if form == 0:
        value = stopped(w, x)
        return w.line("{0} + {1}", x, value) if chance(w.source, 50) else value
    w.no_grad = True
    names = ("activation_call", "batch_norm", "with_number")
    names += ("conv2d", "same_conv2d") if w.kind(x) == "map" else ("linear",)
    value = KINDS[choice(w.source, names)].draw(w, x)
    w.no_grad = False
    if w.shape(value) == w.shape(x) and chance(w.source, 60):
        return w.line(choice(w.source, ("{0} + {1}", "{0} * {1}")), x, value)
    return value


@kind(3, "map", "row")
def frozen(w: Writer, x: str) -> str:
    """Parameters that are not trained."""
    layers = [m.name for m in w.members if "nn.Sequential" not in m.text and LAYER.search(m.text)]
    if not layers:
        raise RejectedError("nothing to freeze")
    name = choice(w.source, layers)
    part = choice(w.source, ("", ".weight", ".bias"))
    w.configure(f"net.{name}{part}.requires_grad_(False)")
    return x


CHANGES = (
    "{0}.add_(1)",
    "{0} += 1",
    "{0}.mul_(0.9)",
    "{0}.fill_(3)",
    "{0}[0] = 2",
    "{0}.copy_({0} * 0.5 + 1)",
    "{0}.lerp_(torch.ones_like({0}), 0.25)",
)


@kind(1, "map", "row")
def counted(w: Writer, x: str) -> str:
    """State of the network's own that forward changes."""
    form = w.source.integer(0, 2)
    if form == 0:
        w.change(choice(w.source, CHANGES).format(w.member("count", "nn.Buffer(torch.ones(2))")))
    elif form == 1:
        c = w.shape(x)[1]
        state = w.member("ema", f"nn.Buffer(torch.zeros({c}))")
        dims = "(0, 2, 3)" if w.kind(x) == "map" else "0"
        w.change(f"{state}.copy_({{0}}.detach().mean({dims}))", x)
    else:
        return choice(w.source, (_read_and_changed, _weight_changed))(w, x)
    return x


def _read_and_changed(w: Writer, x: str) -> str:
    """A buffer that maps read before, after, or on both sides of its change."""
    state = w.member("scale", "nn.Buffer(torch.full((1,), 0.5))")
    sides = choice(w.source, ("after", "before", "both"))
    if sides != "after":
        x = w.line(f"{{0}} + {state}", x)
    w.change(choice(w.source, CHANGES).format(state))
    return x if sides == "before" else w.line(f"{{0}} * {state}", x)


def _weight_changed(w: Writer, x: str) -> str:
    """A layer whose weight changes before the layer reads it."""
    c = w.shape(x)[1]
    made = f"nn.Conv2d({c}, {c}, 1)" if w.kind(x) == "map" else f"nn.Linear({c}, {c})"
    layer = w.member("changed", made)
    w.change(f"{layer}.weight.data.{choice(w.source, ('clamp_(-0.2, 0.2)', 'mul_(0.9)'))}")
    return w.line(f"{layer}({{0}})", x)
