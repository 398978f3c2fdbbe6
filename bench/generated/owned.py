"""What a network holds beside its layers: computed of, viewed, written over and read again."""

from bench.generated.kinds import kind
from bench.generated.motifs import CHANGES, conv_to
from bench.generated.source import chance, choice
from bench.generated.writer import RejectedError, Writer

COMPUTED = (
    "{p} * 1.5",
    "{p} - {p}.mean()",
    "{p}.clone()",
    "torch.cat([{p}[:1], {p}[1:] * 0.5])",
    "Doubling.apply({p}, 2)",
)
WRITTEN = (  # over a computed tensor
    "{0}[0] = 0.25",
    "{0}[:1] *= 0.5",
    "{0}.mul_(0.5)",
    "{0}.clamp_(-0.2, 0.2)",
    "torch._foreach_mul_([{0}], 0.5)",
    "nn.init.constant_({0}, 0.125)",
)
WITHOUT_MAPS = (  # of parameters alone
    "Doubling.apply({p}, 2).mean()",
    "torch.stack(torch.split({p}, 1)).sum()",
    "{p}.max(0).values.sum()",
    "{p}.sort(0)[0][:1].sum()",
    "({p} * {{0}}.new_full((1,), 0.5)).sum()",
    "torch.where({p} > 0, {p}, {{0}}.new_zeros(())).mean()",
)
MADE_IN_FORWARD = (
    "nn.ReLU()({0})",
    "nn.LeakyReLU(0.2)({0})",
    "nn.AvgPool2d(1)({0})",
    "nn.Upsample(scale_factor=2)({0})",
    "nn.Sequential(nn.Tanh(), nn.Identity())({0})",
    "nn.ZeroPad2d(1)({0})",
)
NUMBERS = (  # that are known before a step
    "{0} * np.float32(0.5)",
    "{0} + np.float64(0.25)",
    "{0} / np.int64(2)",
    "{0}.cpu().to({0}.device)",
    "{0} ** np.int64(2)",
)


@kind(4)
def weight_computed_in_place(w: Writer, x: str) -> str:
    """A weight that is computed, written over, and read by one or two layers."""
    c = w.shape(x)[1]
    param = w.member("p", f"nn.Parameter(0.3 * torch.randn({c}, {c}, 3, 3))")
    weight = w.line(choice(w.source, COMPUTED).format(p=param))
    w.dead.add(weight)
    if chance(w.source, 50):
        w.change(choice(w.source, WRITTEN), weight)
    value = w.line("F.conv2d({0}, {1}, padding=1)", x, weight)
    if chance(w.source, 40):
        return w.line("F.conv2d(torch.relu({0}), {1}, padding=1)", value, weight)
    return value


@kind(3)
def view_of_a_parameter(w: Writer, x: str) -> str:
    """A parameter of another shape than the one that is read."""
    _, c, height, width = w.shape(x)
    held, text = choice(
        w.source,
        (
            ((6, c), f"F.conv2d({{0}}, %s.view(6, {c}, 1, 1))"),
            ((3, c), f"F.linear({{0}}.mean((2, 3)), %s.view(3, {c}))"),
            ((c * 9,), f"F.conv2d({{0}}, %s.view({c}, 1, 3, 3), padding=1, groups={c})"),
            ((1, c, height, width), f"{{0}} + %s.view({c}, {height}, {width})"),
            ((1, 1, height, 1), f"{{0}} * %s.view({height}, 1)"),
            ((1, c, 1, 1), f"({{0}}.flatten(2) * %s.view({c}, 1)).view({{0}}.shape)"),
            ((c, 1, 1, 1), f"{{0}}.flatten(2) + %s.view({c}, 1)"),
        ),
    )
    param = w.member("p", f"nn.Parameter(0.3 * torch.randn({held}))")
    return w.line(text % param, x)


@kind(2)
def scale_of_parameters_alone(w: Writer, x: str) -> str:
    param = w.member("p", "nn.Parameter(0.3 * torch.randn(4, 4))")
    return w.line(f"{{0}} * {choice(w.source, WITHOUT_MAPS).format(p=param)}", x)


@kind(1)
def attention_of_parameters(w: Writer, x: str) -> str:
    """Learned rows that attend to one another, and scale channels."""
    c = w.shape(x)[1]
    rows = w.member("p", "nn.Parameter(torch.randn(3, 2, 4))")
    layer = w.member("attention", "nn.MultiheadAttention(4, 2)")
    weight = f"{layer}({rows}, {rows}, {rows}, need_weights=False)[0]"
    head = w.member("p", f"nn.Parameter(torch.randn({c}, 24))")
    return w.line(f"{{0}} * torch.tanh({head} @ {weight}.flatten()).view(-1, 1, 1)", x)


@kind(1)
def weight_normed_by_a_hook(w: Writer, x: str) -> str:
    c = w.shape(x)[1]
    return w.layer("conv", f"nn.utils.weight_norm(nn.Conv2d({c}, 4, 3, padding=1))", x)


@kind(2)
def made_in_forward(w: Writer, x: str) -> str:
    """A layer without parameters that forward makes anew in each step."""
    return w.line(choice(w.source, MADE_IN_FORWARD), x)


@kind(3)
def known_number(w: Writer, x: str) -> str:
    return w.line(choice(w.source, NUMBERS), x)


@kind(2, "map", "row")
def two_states_changed(w: Writer, x: str) -> str:
    """Two buffers, each read before its own change and perhaps behind it."""
    states = [w.member("scale", "nn.Buffer(torch.full((1,), 0.5))") for _ in range(2)]
    for state in states:
        x = w.line(f"{{0}} + {state}", x)
        w.change(choice(w.source, CHANGES).format(state))
    return w.line(f"{{0}} * {choice(w.source, states)}", x) if chance(w.source, 50) else x


@kind(2, changes=True)
def copied_over_whole(w: Writer, x: str) -> str:
    """A map that is written over, as a whole, with a sum of itself and another."""
    if w.kind(x) != "map":
        raise RejectedError("no map")
    value = conv_to(w, x, w.shape(x)[1])
    w.change("{0}.copy_({0} * 0.5 + {1} * {1}.sigmoid())", value, x)
    return w.line("{0} * 2", value)
