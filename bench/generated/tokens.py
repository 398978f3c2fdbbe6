"""Layers over last dimensions, stacked maps, slices of a Sequential, constants and masks."""

from bench.generated.kinds import kind, sized
from bench.generated.motifs import conv_to
from bench.generated.source import chance, choice
from bench.generated.writer import Writer

STACKED = (
    "torch.stack([{0}, {1}]).sum(0)",
    "torch.stack(({1}, {0}, {1}), dim=0).sum(dim=0)",
    "torch.stack([{0}, {1}], 0).mean((0,))",
    "torch.mean(torch.stack([{1}, {0}]), dim=0)",
    "torch.sum(torch.stack([{0}, {0}, {1}], -1 - {0}.dim()), 0)",
)
REPEATED = (
    "{0}.repeat_interleave(2, 1)",
    "{0}.repeat_interleave(2, dim=2)",
    "torch.repeat_interleave({0}, 3, dim=-1)",
    "torch.repeat_interleave({0}, 2, -2)",
)
CONSTANTS = (
    "{0} + torch.ones(1)",
    "{0} * {0}.new_ones(1)",
    "{0} + {0}.new_zeros(CHANNELS, 1, 1)",
    "{0} * {0}.new_full((1,), 2)",
    "{0} * torch.full((CHANNELS, 1, 1), 0.5)",
    "torch.linspace(-1, 1, WIDTH) - {0}",
    "{0} / torch.arange(1.0, 1.0 + HEIGHT).unsqueeze(1)",
    "{0} * torch.tensor(0.7) + torch.tensor([[0.5]])",
    "{0} * torch.eye(HEIGHT, WIDTH)",
    "{0} * torch.ones({0}.shape)",
    "{0} + torch.linspace(0, 1, WIDTH).repeat(BATCH, 1, HEIGHT, 1)",
    "{0} * torch.hann_window(CHANNELS, periodic=False)[:, None, None]",
    "{0} * (2.0 ** torch.arange(HEIGHT).neg())[:, None]",
    "{0} + torch.zeros(CHANNELS, 1, 1).add_(0.5).fill_(0.25)",
    "{0} * torch.as_tensor(0.5) + torch.as_tensor({0})",
    "{0} * 2 if torch.jit.isinstance([{0}], list[torch.Tensor]) else {0}",
    "torch.maximum({0}, torch.zeros(1))",
)
JOINED = (
    "torch.cat([{0}, torch.zeros(BATCH, 2, HEIGHT, WIDTH)], 1)",
    "torch.cat((torch.linspace(-1, 1, WIDTH).expand(BATCH, 1, HEIGHT, WIDTH), {0}), dim=1)",
    "torch.cat([{0}, torch.zeros_like({0}[:, :1]), {0}], -3)",
    "torch.concat([{0}.new_ones(1, 3, HEIGHT, WIDTH).expand(BATCH, -1, -1, -1), {0}], 1)",
    "torch.cat([{0}, torch.full((BATCH, CHANNELS, 1, WIDTH), 0.5)], 2)",
    "torch.cat([{0} * torch.ones_like({0}), torch.full_like({0}, 0.25)], -1)",
    "torch.cat([{0}, torch.arange(HEIGHT).view(-1, 1).repeat(BATCH, 1, 1, WIDTH)], 1)",
)
MASKED = (  # of all samples or none: random masks cannot be compared
    "{0} / 1.0 * torch.floor(1.0 + torch.rand((BATCH, 1, 1, 1), device={0}.device))",
    "{0} * {0}.new_empty((BATCH, 1, 1, 1)).bernoulli_(1.0)",
    "torch.empty(BATCH, device={0}.device).bernoulli_(0.0).view(-1, 1, 1, 1) * {0}",
    "{0} * (torch.rand(BATCH, 1, 1, 1, device={0}.device) < 1.0).float().div_(2.0)",
    "{0}.mul(2.0).mul_(torch.rand(BATCH, 1, 1, 1, device={0}.device).add_(1).floor_())",
)
DRAWN = (  # random numbers that decide nothing
    "{0} + torch.randn_like({0}) * 0.0",
    "{0} * (torch.rand_like({0}) < 1.0).to({0}.dtype)",
    "torch.empty_like({0}).bernoulli_(1.0).div_(2.0) * {0}",
    "{0} * (1 - torch.zeros_like({0}).bernoulli_(0.0))",
    "{0} + torch.rand(BATCH, 1, HEIGHT, WIDTH).to({0}).clamp(2.0, 3.0)",
    "torch.randn({0}.shape).type_as({0}).mul_(0.0).add_(0.5) * {0}",
    "{0} - torch.empty_like({0}).exponential_().clamp(max=0.0)",
    "{0} + {0}.new_empty({0}.shape).normal_(0.5, 0.0)",
    "{0} * torch.zeros_like({0}).uniform_(2.0, 2.0)",
    "{0} * torch.normal(1.0, 0.0, (BATCH, CHANNELS)).to({0})[:, :, None, None]",
    "{0} + F.gumbel_softmax({0}, dim=1) * 0.0",
    "torch.broadcast_tensors({0}, {0}[:, :1])[1] + {0}",
)
SAMPLES = (
    "{0} * torch.ones(len({0}))",
    "{0} + torch.full({0}.shape, 0.5)",
    "torch.sin({0}) * {0}.cos() + torch.cos({0}).sin()",
    "torch.sin_({0} * 2) + torch.cos_({0} + 1)",
)


@kind(3, "map", "line", "groups")
def linear_over_the_last(w: Writer, x: str) -> str:
    """A linear layer whose channels are the last dimension, wherever it lies."""
    w.at_most(x, 200)
    size, out = w.shape(x)[-1], choice(w.source, (4, 3, 8, 1))
    if chance(w.source, 60):
        layer = f"nn.Linear({size}, {out}, bias={chance(w.source, 70)})"
        return w.layer("fc", layer, x)
    held = choice(w.source, ("nn.Parameter", "nn.Buffer"))
    weight = w.member("p", f"{held}(0.3 * torch.randn({out}, {size}))")
    return w.line(f"F.linear({{0}}, {weight})", x)


@kind(2, "map", "line", "groups")
def layer_norm_over_the_last(w: Writer, x: str) -> str:
    size = w.shape(x)[-1]
    layer = choice(w.source, ("", ", elementwise_affine=False", ", bias=False", ", eps=1e-3"))
    return w.layer("norm", f"nn.LayerNorm({size}{layer})", x)


@kind(4)
def tokens(w: Writer, x: str) -> str:
    """Pixels as tokens [N, L, C] through blocks of normalizations and linear layers, and back."""
    w.at_most(x, 150)
    c = choice(w.source, (4, 8, 5))
    x = conv_to(w, x, c)
    height, width = w.shape(x)[2:]
    value = w.line(choice(w.source, ("{0}.flatten(2).transpose(1, 2)", "{0}.flatten(2).mT")), x)
    for _ in range(w.source.integer(1, 2)):
        branch = w.layer("norm", f"nn.LayerNorm({c})", value) if chance(w.source, 70) else value
        pixels = chance(w.source, 40)
        size = height * width if pixels else c
        branch = w.line("{0}.transpose(1, 2)", branch) if pixels else branch
        for layer in (f"nn.Linear({size}, 6)", "nn.GELU()", f"nn.Linear(6, {size})"):
            branch = w.layer("part", layer, branch)
        branch = w.line("{0}.transpose(1, 2)", branch) if pixels else branch
        value = w.line("{0} + {1}", value, branch) if chance(w.source, 80) else branch
    if chance(w.source, 25):
        return w.line("{0}.mean(1)", value)
    if chance(w.source, 25):
        return _class_token(w, value)
    return w.line(f"{{0}}.transpose(1, 2).reshape({w.shape(x)})", value)


def _class_token(w: Writer, tokens: str) -> str:
    """The first of the tokens, a parameter, behind a layer over all of them."""
    size, _, c = w.shape(tokens)
    token = w.member("token", f"nn.Parameter(torch.randn(1, 1, {c}))")
    form = choice(w.source, (f"expand({size}, -1, -1)", f"repeat({size}, 1, 1)"))
    value = w.line(f"torch.cat([{token}.{form}, {{0}}], dim=1)", tokens)
    value = w.line("{0}.transpose(1, 2)", value)
    value = w.layer("part", f"nn.Linear({w.shape(value)[2]}, 4)", value)
    return w.line("{0}[:, :, 0]", value)


@kind(3)
def joined_with_constant(w: Writer, x: str) -> str:
    """A map beside constants or a parameter, as coordinates and channels of zeros."""
    w.at_most(x, 200)
    if chance(w.source, 75):
        return w.line(sized(w, x, choice(w.source, JOINED)), x)
    batch, _, height, width = w.shape(x)
    param = w.member("own", f"nn.Parameter(torch.randn(1, 2, {height}, {width}))")
    return w.line(f"torch.cat([{{0}}, {param}.expand({batch}, -1, -1, -1)], 1)", x)


@kind(1)
def masked_samples(w: Writer, x: str) -> str:
    """Stochastic depth by hand, which drops nothing or all."""
    return w.line(sized(w, x, choice(w.source, MASKED)), x)


@kind(2)
def drawn(w: Writer, x: str) -> str:
    """Noise, dropout by hand and a relaxed choice, all without an effect."""
    return w.line(sized(w, x, choice(w.source, DRAWN)), x)


@kind(2, "map", "line", "row")
def stacked(w: Writer, x: str) -> str:
    """Maps stacked in front of the batch, and added."""
    others = w.alike(x)
    other = choice(w.source, others) if others and chance(w.source, 60) else None
    return w.line(choice(w.source, STACKED), x, other or w.line("torch.tanh({0})", x))


@kind(2)
def repeated(w: Writer, x: str) -> str:
    """Every element of a dimension several times."""
    w.at_most(x, 200)
    return w.line(choice(w.source, REPEATED), x)


@kind(2)
def slices_of_a_sequential(w: Writer, x: str) -> str:
    """A Sequential of which forward calls one part after the other, with another call between."""
    c, out = w.shape(x)[1], choice(w.source, (4, 6))
    inner = (
        f"nn.Conv2d({c}, {out}, 1), nn.BatchNorm2d({out}), nn.ReLU(), nn.Conv2d({out}, {out}, 1)"
    )
    layers = w.member("parts", f"nn.Sequential({inner})")
    at = w.source.integer(1, 3)
    value = w.line(f"{layers}[:{at}]({{0}})", x)
    value = w.line("{0} * 0.5", value) if chance(w.source, 40) else value
    return w.line(f"{layers}[{at}:]({{0}})", value)


@kind(4)
def constant(w: Writer, x: str) -> str:
    """A map with a tensor that forward makes anew."""
    return w.line(sized(w, x, choice(w.source, CONSTANTS)), x)


@kind(1, "number", "line", "row", "map")
def constant_of_samples(w: Writer, x: str) -> str:
    """A constant as large as the batch and alike for all samples, and sines."""
    texts = SAMPLES if w.kind(x) == "number" else SAMPLES[1:]
    return w.line(choice(w.source, texts), x)
