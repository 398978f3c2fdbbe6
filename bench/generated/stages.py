"""Stages of well-known networks, whose channels come in whole words: ranges, signs, moments."""

from bench.generated.kinds import kind
from bench.generated.motifs import conv_to
from bench.generated.source import chance, choice
from bench.generated.writer import Writer

LARGE = 100  # pixels of a map that many channels are made of


@kind(3)
def halves(w: Writer, x: str) -> str:
    """ShuffleNet's: one half of the channels goes by, the other through layers."""
    h = conv_to(w, x, choice(w.source, (8, 16, 24)))
    text = choice(w.source, ("{0}.chunk(2, 1)", "torch.tensor_split({0}, 2, 1)"))
    first, second = w.parts(text, h, count=2)
    branch = conv_to(w, second, w.shape(second)[1], choice(w.source, (1, 3)))
    if chance(w.source, 50):
        branch = w.line("F.relu({0})", branch)
    form = w.source.integer(0, 3)
    if form == 0:
        return w.line("torch.cat([{0}, {1}], 1)", first, branch)
    if form == 1:
        return w.line("{0} * torch.sigmoid({1})", first, branch)
    if form == 2:
        return w.line("torch.cat([{0}, {1}, {2}], 1)", branch, first, h)
    joined = w.line("torch.cat([{0}, {1}], 1)", first, branch)
    return w.layer("mix", "nn.ChannelShuffle(2)", joined)


@kind(2)
def ranges_read_twice(w: Writer, x: str) -> str:
    """Overlapping ranges of the channels of one map, each read by another layer."""
    h = conv_to(w, x, 16)
    first = w.line("{0}[:, :8]", h)
    second = w.line(choice(w.source, ("{0}[:, 4:12]", "{0}[:, 8:]", "{0}[:, :8]")), h)
    texts = ("torch.cat([{0}, {1}], 1)", "torch.cat([{1}, {0}, {0}], 1)", "{0} + {1}")
    joined = w.line(choice(w.source, texts), conv_to(w, first, 8), w.line("{0} * 2", second))
    return w.line("{0} + {1}", joined, h) if w.shape(joined) == w.shape(h) else joined


@kind(4)
def sum_over_a_concatenation(w: Writer, x: str) -> str:
    """One gradient for all that is joined: cat([a, b]) + skip, read again by its parts."""
    a, b = conv_to(w, x, 8), conv_to(w, x, 8)
    joined = w.line("torch.cat([{0}, {1}], 1)", a, b)
    total = w.line("{0} + {1}", joined, conv_to(w, x, 16))
    other = w.line(choice(w.source, ("F.relu({0})", "{0} * 0.5", "torch.tanh({0})")), a)
    form = w.source.integer(0, 2)
    if form == 0:
        return w.line("torch.cat([{0}, {1}, {2}], 1)", total, joined, other)
    if form == 1:
        return w.line("torch.cat([{0}, {1}, {2}], 1)", a, b, w.line("torch.tanh({0})", joined))
    return w.line("torch.cat([{0}, {1}], 1)", total, other)


@kind(6)
def bottleneck(w: Writer, x: str) -> str:
    """ResNet-50's blocks: ReLUs behind sums. Their signs fit bits where channels fill bytes."""
    w.at_most(x, LARGE)
    wide = choice(w.source, (128, 16, 128, 8))
    value = conv_to(w, x, wide)
    for _ in range(2):
        inner = choice(w.source, (64, 8)) if wide == 128 else 8
        first = f"nn.Conv2d({wide}, {inner}, 1, bias=False), nn.BatchNorm2d({inner}), nn.ReLU()"
        last = f"nn.Conv2d({inner}, {wide}, 1, bias=False), nn.BatchNorm2d({wide})"
        branch = w.layer("block", f"nn.Sequential({first}, {last})", value)
        value = w.line("F.relu({0} + {1})", branch, value)
    return value


@kind(3)
def normalized_at_large_sides(w: Writer, x: str) -> str:
    """Convolutions that leave moments of whole cells, and what normalizes their maps."""
    value = w.line("F.interpolate({0}, size=(16, 12))", x)
    value = conv_to(w, value, choice(w.source, (8, 16, 32)), choice(w.source, (1, 3)))
    value = w.layer("bn", f"nn.BatchNorm2d({w.shape(value)[1]})", value)
    return w.line(choice(w.source, ("F.relu({0})", "F.avg_pool2d(F.silu({0}), 2)")), value)


@kind(2)
def head_of_maps(w: Writer, x: str) -> str:
    """AlexNet's: convolution, ReLU, perhaps a pooling, flatten, linear, ReLU, dropout, linear."""
    w.at_most(x, LARGE)
    c = w.shape(x)[1]
    pool = choice(w.source, ("", ", nn.MaxPool2d(2)", ", nn.AdaptiveAvgPool2d(1)"))
    body = w.layer("body", f"nn.Sequential(nn.Conv2d({c}, 8, 3, padding=1), nn.ReLU(){pool})", x)
    flat = w.line("{0}.flatten(1)", body)
    p = choice(w.source, (0.0, 1.0)) if w.training else 0.5
    layers = f"nn.Linear({w.shape(flat)[1]}, 8), nn.ReLU(), nn.Dropout({p}), nn.Linear(8, 6)"
    return w.layer("head", f"nn.Sequential({layers})", flat)


@kind(3)
def moved_between_layers(w: Writer, x: str) -> str:
    """A move of values between a ReLU and the layer that masks its gradient."""
    value = w.line("F.relu({0})", conv_to(w, x, 8, 3))
    moves = ("{0}.flatten(2).view({0}.shape)", "F.channel_shuffle({0}, 2)", "{0}.contiguous()")
    moves += ("{0}", "{0}")
    moves += ("F.pad({0}, (1, 1, 1, 1))", "{0}.flip(3)", "{0}.transpose(2, 3)")
    return conv_to(w, w.line(choice(w.source, moves), value), 8, 3)


@kind(6)
def gates_of_few_gradients(w: Writer, x: str) -> str:
    """A map times or plus one value a channel, of which one side has no gradient."""
    pooled = w.line("torch.sigmoid({0}.mean((2, 3), keepdim=True))", x)
    value = conv_to(w, x, w.shape(x)[1])
    texts = ("{0}.detach() * {1}", "{0} * {1}.detach()", "{0}.detach() + {1}", "{0} + {1}")
    texts += ("{0} + {1}.detach()", "torch.add({0}, {0}.detach(), alpha=2) * {1}")
    return w.line(choice(w.source, texts), value, pooled)


@kind(4)
def frozen_part(w: Writer, x: str) -> str:
    """A layer of which weight, bias or both are not trained, behind one that is."""
    w.at_most(x, LARGE)
    layers = (
        f"nn.Conv2d(8, 8, 3, padding=1, groups={choice(w.source, (1, 8))})",
        "nn.ConvTranspose2d(8, 4, 2)",
        "nn.BatchNorm2d(8)",
        "nn.GroupNorm(2, 8)",
        "nn.PReLU(8)",
        "nn.InstanceNorm2d(8, affine=True)",
    )
    layer = w.member("part", choice(w.source, layers))
    w.configure(f"net.{layer[5:]}{choice(w.source, ('', '.weight'))}.requires_grad_(False)")
    source = conv_to(w, x, 8) if chance(w.source, 70) else w.line("{0}.detach()", conv_to(w, x, 8))
    return w.line(f"{layer}({{0}})", source)


@kind(5, "row")
def frozen_part_of_rows(w: Writer, x: str) -> str:
    features = w.shape(x)[1]
    texts = (f"nn.Linear({features}, 6)", f"nn.LayerNorm({features})", "nn.PReLU()")
    text = choice(w.source, texts)
    layer = w.member("part", text)
    part = choice(w.source, ("", ".weight") if "PReLU" in text else ("", ".weight", ".bias"))
    w.configure(f"net.{layer[5:]}{part}.requires_grad_(False)")
    return w.line(f"{layer}({{0}})", x)


@kind(3)
def held_by_channel(w: Writer, x: str) -> str:
    """Sums and products with parameters or buffers of channels, not all of them trained."""
    c = w.shape(x)[1]
    held = w.member("p", f"nn.{choice(w.source, ('Parameter', 'Buffer'))}(torch.randn({c}, 1, 1))")
    if "Parameter" in w.members[-1].text and chance(w.source, 50):
        w.configure(f"net.{held[5:]}.requires_grad_(False)")
    source = w.line("{0}.detach()", x) if chance(w.source, 40) else conv_to(w, x, c)
    texts = ("{0} + %s", "{0} * %s", "%s - {0}", "torch.maximum({0}, %s)")
    return w.line(choice(w.source, texts) % held, source)
