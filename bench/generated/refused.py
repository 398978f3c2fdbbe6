"""What tvdnn refuses, drawn on purpose: each is to be refused by name, never computed wrongly."""

from bench.generated.kinds import kind, sized
from bench.generated.motifs import conv_to
from bench.generated.source import chance, choice
from bench.generated.writer import RejectedError, Writer

CALLS = (
    "torch.cumsum({0}, 1)",
    "torch.cat([{0}, {0}], 0)[: len({0})]",
    "torch.stack([{0}, {0}], 0)[0]",
    "{0}[:, [0]]",
    "{0}[torch.zeros(len({0}), dtype=torch.int64)]",
    "torch.where({0} > 0, {0}, {0} * 0.5)",
    "F.leaky_relu({0}, -0.1)",
    "{0} + torch.rand(1)",
    "{0} + torch.arange({0}.shape[3])",
    "{0} + torch.arange(1.0 * {0}.numel()).view({0}.shape)",
    "{0} + {0}.mean((1, 2))",
    "torch.cat([{0}, torch.empty_like({0}).log_normal_()], 1)",
    "(torch.stack([{0}, {0}], 2) * torch.stack([{0}, {0}], 2).mean((1, 3), keepdim=True))[:, :, 0]",
    "F.local_response_norm({0}.flatten(2), 2).view({0}.shape)",
    "F.max_pool2d({0}.flatten(2), 1).view({0}.shape)",
    "F.dropout2d({0}.flatten(2), 1.0).view({0}.shape)",
    "F.layer_norm({0}, {0}.shape[1:])",
    "{0}.reshape(-1, {0}.shape[3]).reshape({0}.shape)",
    "torch.channel_shuffle({0}.flatten(2), 1).view({0}.shape)",
    "F.pixel_shuffle({0}.flatten(2), 1).view({0}.shape)",
    "F.pixel_unshuffle({0}.flatten(2), 1).view({0}.shape)",
    "{0}.permute(1, 0, 2, 3).permute(1, 0, 2, 3)",
    "{0} * torch.max({0}).tanh()",
    "{0} + {0}.max(1, keepdim=True)[1]",
    "{0} + {0}.max(1, keepdim=True).indices",
    "{0} * {0}.adjoint().adjoint()",
    "{0} * torch.norm({0}, p=1, dim=1, keepdim=True)",
    "{0} * {0}.var(True)",
    "{0} * {0}.var()",
    "{0} + {0}.sum(1, keepdim=True, dtype=torch.float64).to({0}.dtype)",
    "{0} - {0}.mean(0, keepdim=True)",
    "{0}.flip(0)",
    "{0} + {0}[:, :0].sum(1, keepdim=True)",
    "torch.stack([{0}, {0}, {0}], 2)[:, ::2, ::2, ::2, ::2].flatten(1, 2)",
    "torch.roll({0}, 1)",
    "{0}.repeat(1, 1, 1, 1, 1)[0]",
    "F.interpolate({0}.unsqueeze(2), scale_factor=1).squeeze(2)",
    "F.interpolate({0}, scale_factor=2, mode='bicubic')",
    "F.interpolate({0}, scale_factor=2, mode='bilinear', antialias=True)",
    "F.softmax({0}, 0)",
    "{0}.softmax(1, dtype=torch.float64).to({0}.dtype)",
    "torch.div({0}, 2, rounding_mode='floor')",
    "({0} * 1).unsqueeze_(1).squeeze(1)",
    "({0} * 1).transpose_(2, 3)",
    "{0}[{0} > 0].mean() * {0}",
    "{0}.topk(1, 1)[0] + {0}",
    "({0}.abs() + 1) ** {0}.tanh()",
    "torch.clamp({0}, min={0}.mean(1, keepdim=True))",
    "{0} * float(torch.rand(1) + 1)",
    "Doubling.apply({0}, 2)",
    "{0} * int({0}.mean() < 9)",
    "{0} if {0}.mean() < 9 else -{0}",
    "{0} * float({0}.mean() < 9)",
    "[{0}, -{0}][{0}.mean() > 9]",
    "torch.stack([part for part in {0}])",
    "{0} * (1 + torch.masked_select({0}, {0} > 0).shape[0] % 2)",
    "{0} * (1 + {0}.unique().numel() % 2)",
    "torch.zeros({0}.shape).copy_({0})",
    "({0} * 0.5).copy_({0})",
    "torch.sinh({0})",
    "{0} * (1 + ({0}.data_ptr() > 0))",
    "{0} @ {0}.transpose(2, 3)",
    "({0} * 1).requires_grad_().sinh()",
    "{0}.to(torch.int64) + {0}",
    "{0}.type(torch.int32) * {0}",
    "{0}.type_as(torch.ones(1, dtype=torch.int64)) * {0}",
    "{0} * {0}.new_empty(1).uniform_()",
    "torch.as_strided({0} * 1, {0}.shape, {0}.stride())",
    "{0} * (getattr({0}, 'nothing', None) is None) + {0}.sign()",
)
LAYERS = (
    "nn.Softshrink(0.1)",
    "nn.Tanhshrink()",
    "nn.RReLU(0.1, 0.1)",
    "nn.InstanceNorm2d(CHANNELS, track_running_stats=True)",
    "Autocast()",
    "Keeping('map')",
    "Keeping('list')",
    "Keeping('number')",
    "Keeping('count')",
    "Hooked(False)",
    "Hooked(True)",
    "Running(CHANNELS)",
    "Writing(3)",
    "Writing(7)",
)
STATEMENTS = (
    "assert {0}.mean() < 9",
    "torch._assert({0}.mean() < 9, 'large')",
    "{0}.copy_({0}[:, :1])",
    "{0}.resize_({0}.shape)",
    "{0}.bernoulli_(1.0)",
    "torch._foreach_mul_([{0}], 0.5)",
    "{0}.as_strided({0}.shape, {0}.stride()).mul_(0.5)",
    "{0}.as_strided({0}.shape, ({0}.stride(0), {0}.shape[3], {0}[0, :, 0].numel(), 1)).mul_(2)",
    "{0}.transpose(2, 3).as_strided({0}.flatten(1).shape, ({0}.stride(0), 1)).mul_(2)",
    "{0}.diagonal(0, 2, 3).mul_(0.5)",
    "{0}.unfold(2, 1, 1).mul_(0.5)",
    "{0}.fill_(0.5)",
    "{0}.data.mul_(0.5)",
)
OWN = (  # of the module: what forward writes
    ("nn.Buffer(torch.zeros(CHANNELS))", "{member}.copy_({x}.detach().mean((0, 2, 3)))"),
    ("torch.zeros(1)", "{member}.add_(1)"),
    ("nn.Conv2d(CHANNELS, 1, 1)", "{member}.weight.requires_grad_(False)"),
    ("nn.BatchNorm2d(CHANNELS)", "{member}.running_mean.lerp_({x}.detach().mean((0, 2, 3)), 0.1)"),
)
HELD = (  # a member, and a call on it
    ("nn.Buffer(torch.ones(1, dtype=torch.int64))", "{x} + {member}"),
    ("nn.Parameter(torch.randn(BATCH, CHANNELS, 1, 1))", "{x} * {member}"),
    ("nn.Buffer(torch.randn(5, CHANNELS))", "F.linear({x}.mean((2, 3)), {member})"),
    (
        "nn.Buffer(torch.zeros(CHANNELS))",
        "F.batch_norm({x}, {member} * 1, {member} + 1, training=True)",
    ),
    (
        "nn.Buffer(torch.ones(CHANNELS))",
        "F.instance_norm({x}, {member} * 0, {member}, use_input_stats=False)",
    ),
    (
        "nn.Buffer(torch.ones(BATCH, CHANNELS, HEIGHT, WIDTH))",
        "torch.add({member}, {member}, out={x}.detach() * 1) + {x}",
    ),
    (
        "nn.Parameter(torch.randn(HEIGHT, 1))",
        "(torch.stack([{x}, {x}], 2) * {member})[:, :, 0]",
    ),
    ("torch.ones(1, requires_grad=True)", "{x} * {member}"),
    ("nn.Buffer(torch.ones(BATCH, CHANNELS))", "{x}.mean((2, 3)) + {member}"),
    ("nn.Parameter(torch.randn(2, 3))", "{member} * 1"),
)
OPAQUE = (
    "Counting()",
    "Averaging(CHANNELS)",
    "Noisy()",
    "Several()",
    "OverBatch()",
    "nn.RReLU()",
)


@kind(24, refused=True)
def refused_call(w: Writer, x: str) -> str:
    return w.line(choice(w.source, CALLS), x)


@kind(4, refused=True)
def refused_layer(w: Writer, x: str) -> str:
    return layer(w, x, choice(w.source, LAYERS))


def layer(w: Writer, x: str, text: str) -> str:
    return w.layer("part", sized(w, x, text), x)


@kind(5, refused=True)
def refused_statement(w: Writer, x: str) -> str:
    value = conv_to(w, x, w.shape(x)[1]) if chance(w.source, 50) else w.line("{0} * 0.5", x)
    w.change(choice(w.source, STATEMENTS), value)
    return w.line("{0} * 2", value)


@kind(3, refused=True)
def refused_write_of_its_own(w: Writer, x: str) -> str:
    return written(w, x, *choice(w.source, OWN))


def written(w: Writer, x: str, own: str, statement: str) -> str:
    """A statement that writes a member of the network."""
    member = w.member("own", sized(w, x, own))
    w.change(statement.replace("{member}", member).replace("{x}", "{0}"), x)
    return x


@kind(5, refused=True)
def refused_operand(w: Writer, x: str) -> str:
    return operand(w, x, *choice(w.source, HELD))


def operand(w: Writer, x: str, own: str, call: str) -> str:
    """A call on a map and a member of the network."""
    member = w.member("own", sized(w, x, own))
    return w.line(sized(w, x, call).replace("{member}", member).replace("{x}", "{0}"), x)


@kind(3, refused=True)
def refused_opaque(w: Writer, x: str) -> str:
    text = sized(w, x, choice(w.source, OPAQUE))
    part = w.member("opaque", text)
    if "OverBatch" in text:
        return w.line(f"{part}({{0}}).view({{0}}.shape)", x)
    return w.line(f"{part}({{0}}){'[1]' if 'Several' in text else ''}", x)


@kind(1, refused=True)
def refused_wish_for_a_gradient(w: Writer, x: str) -> str:
    """Forward asks for the gradient of an input that requires none."""
    w.change("{0}.requires_grad_()", "x")
    return w.line("{0} + {1}", x, w.line("{0} * 2", "x"))


@kind(1, refused=True)
def refused_hook(w: Writer, x: str) -> str:
    c = w.shape(x)[1]
    conv = w.member("conv", f"nn.Conv2d({c}, {c}, 1)")
    w.configure(f"net.{conv[5:]}.register_full_backward_hook(lambda *given: None)")
    return w.line(f"{conv}({{0}})", x)


@kind(1, refused=True)
def refused_order(w: Writer, x: str) -> str:
    """A copy of seven dimensions in an order that takes each apart."""
    n, c, height, width = w.shape(x)
    if c % 4 or height % 2 or width % 4:
        raise RejectedError("no such parts")
    parts = (n, 2, c // 2, 2, height // 2, 2, width // 2)
    apart = w.line(f"{{0}}.view{parts}.permute(0, 6, 4, 2, 5, 3, 1)", x)
    return w.line(f"{{0}}.reshape{(n, c, height, width)}", apart)
