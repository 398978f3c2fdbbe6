"""What tvdnn refuses of a network's own tensors and modules: read, changed or made in forward."""

from collections.abc import Sequence

from bench.generated.kinds import kind, sized
from bench.generated.source import choice
from bench.generated.writer import Writer

Motif = tuple[Sequence[str], Sequence[str]]  # members, and statements: "= ..." makes the next map
PARAM, BUFFER = "nn.Parameter(torch.ones(1))", "nn.Buffer(torch.ones(1))"
NORM, CONV = "nn.BatchNorm2d(CHANNELS)", "nn.Conv2d(CHANNELS, CHANNELS, 1)"

GRID = "nn.Buffer(torch.ones(BATCH, CHANNELS, HEIGHT, WIDTH))"

READ: Sequence[Motif] = (  # values that no step but the traced one would have
    ([PARAM], ["= {x} * {m0}.item()"]),
    ([PARAM], ["= {x} * float({m0})"]),
    ([BUFFER], ["= {x} * {m0}.tolist()[0]"]),
)
APART: Sequence[Motif] = (  # modules that the network has not registered
    ([], ["= nn.Softshrink(0.1)({x})"]),
    ([], ["= nn.PReLU().to({x}.dtype)({x})"]),
    ([], ["= nn.BatchNorm2d(CHANNELS).to({x}.dtype)({x})"]),
    (["torch.jit.script(nn.ReLU())"], ["= {m0}({x})"]),
    (["torch.compile(nn.ReLU(), backend='eager')"], ["= {m0}({x})"]),
)
UNKNOWN: Sequence[Motif] = (  # what no step could compute again
    ([PARAM, "[torch.ones(1)]"], ["= {x} * ({m0} * {m1}[0])"]),
    (["nn.Parameter(torch.randn(4))"], ["= {x} * {m0}[np.arange(1)]"]),
    ([PARAM], ["= {x} * ({m0} * torch.rand(1))"]),
    ([PARAM], ["= {x} * F.dropout({m0}, 0.5)"]),
    ([BUFFER], ["{m0}.add_(1)", "= {x} * ({m0} * 2)"]),
    (
        ["nn.Buffer(torch.randn(3, CHANNELS))"],
        ["{m0}.mul_(0.9)", "= F.conv2d({x}, {m0}.view(3, CHANNELS, 1, 1))"],
    ),
    ([NORM], ["= {m0}({x})", "= {x} * ({m0}.running_mean * 2).mean()"]),
    (
        ["nn.Parameter(torch.randn(4, 3))", *["nn.Buffer(torch.ones(3))"] * 2],
        ["= {x} * F.batch_norm({m0}, {m1}, {m2}, training=True).mean()"],
    ),
)
CHANGED: Sequence[Motif] = (  # which a step would not, or not in this order
    ([GRID], ["{m0}.view_as({x}).copy_({x}.detach())"]),
    ([GRID], ["{m0}.expand_as({x}).mul_({x}.shape[1])"]),
    ([BUFFER], ["{m0}.data = {m0}.data * 0.5"]),
    ([BUFFER], ["{m0}.add_(torch.rand(1))"]),
    ([BUFFER, "torch.ones(1)"], ["{m0}.add_({m1})"]),
    (["nn.Buffer(torch.ones(2, dtype=torch.bfloat16))"], ["{m0}.add_(1)"]),
    ([PARAM], ["torch.zeros(1).copy_({m0}.detach())"]),
    ([PARAM], ["{m0}.register_hook(lambda grad: grad)"]),
    ([NORM], ["= {m0}({x})", "{m0}.num_batches_tracked.zero_()"]),
    ([NORM], ["= {m0}({x})", "{m0}.running_var.data.mul_(0.9)"]),
    ([CONV], ["= {m0}({x})", "{m0}.weight.data.mul_(0.9)"]),
    (["Tuned()"], ["= {m0}({x})"]),
)
ON_MAPS: Sequence[Motif] = (
    ([], ["= {x} + {x}.new_zeros(1).normal_()"]),
    ([], ["= {x} * float({x}.new_full((1,), 0.5))"]),
    ([], ["= {x} + {x}.max(1, keepdim=True).indices"]),
)
MOTIFS = (*READ, *APART, *UNKNOWN, *CHANGED, *ON_MAPS)


@kind(16, refused=True)
def refused_state(w: Writer, x: str) -> str:
    return made(w, x, choice(w.source, MOTIFS))


def made(w: Writer, x: str, motif: Motif) -> str:
    """The last map that the statements of a motif make of `x`."""
    texts, statements = motif
    names = {f"m{at}": w.member("own", sized(w, x, text)) for at, text in enumerate(texts)}
    shape = w.shape(x)
    for statement in statements:
        text = sized(w, x, statement.removeprefix("= ")).format(x="{0}", **names)
        if statement.startswith("= "):
            x = w.line(text, x)
        else:
            w.change(text, *([x] if "{0}" in text else []))
    return x if statements[-1].startswith("= ") or w.shape(x) != shape else w.line("{0} * 2", x)


@kind(1, refused=True)
def refused_change_behind_torch(w: Writer, x: str) -> str:
    """A change of a tensor that a submodule reads which runs as it is."""
    part = w.member("opaque", f"Running({w.shape(x)[1]})")
    w.change(f"{part}.shift.mul_(0.9)")
    return w.line(f"{part}({{0}})", x)


@kind(2, refused=True)
def refused_turn_of_a_buffer(w: Writer, x: str) -> str:
    """Filters that are turned over once something is made of them, and turned back."""
    c = w.shape(x)[1]
    state = w.member("own", f"nn.Buffer(torch.ones({c}, 1, 3, 2))")
    texts = (f"{state} * 2", f"{state} + torch.ones({c}, 1, 3, 2)")
    made_of_it = w.line(choice(w.source, texts))
    w.dead.add(made_of_it)
    w.change(f"{state}.transpose_(2, 3)")
    value = w.line(f"F.conv2d({{0}}, {{1}}, padding=2, groups={c})", x, made_of_it)
    w.change(f"{state}.transpose_(2, 3)")
    return value


@kind(1, refused=True)
def refused_write_by_strides(w: Writer, x: str) -> str:
    """A write through strides that lead back to no view of the map."""
    value = w.line("{0} * 0.5", x)
    rows = "{0}.transpose(2, 3).as_strided({0}.flatten(1).shape, ({0}.stride(0), 1))"
    w.change(f"{rows}.mul_(2)", value)
    return w.line("{0} * 2", value)
