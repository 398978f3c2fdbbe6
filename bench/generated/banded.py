"""Networks of one large sample, whose maps are cut into bands of rows."""

from bench.generated.motifs import residual_with_downsample
from bench.generated.program import Program
from bench.generated.source import Source, chance, choice
from bench.generated.writer import RejectedError, Writer

CHUNK_SIZES = (512, 1024)  # bytes, of which these maps have many
STAGES = 4
ELEMENTWISE = (
    "F.relu({0})",
    "torch.tanh({0})",
    "{0} * 0.5",
    "{0} + torch.sigmoid({0})",
    "F.gelu({0})",
    "{0} * {0}",
    "{0} / ({0}.abs() + 1)",
    "torch.cat([{0}, {0}.tanh()], 1)",
)
POOLS = ("MaxPool2d(2)", "AvgPool2d(2)", "MaxPool2d((2, 1))", "AvgPool2d(2, ceil_mode=True)")
OTHERS = ("MaxPool2d(3, 2, 1)", "AvgPool2d(3, 1, 1)", "MaxPool2d(2, dilation=2)")


def program(source: Source) -> Program:
    """Convolutions, poolings, norms and resizings whose rows a power of two divides."""
    w = Writer(source, training=not chance(source, 15))
    side = choice(source, (16, 32))
    value = w.input((1, choice(source, (4, 8)), side, choice(source, (8, 16))), grad=False)
    for _ in range(source.integer(1, STAGES)):
        mark = w.mark()
        try:
            value = _stage(w, value)
        except RejectedError:
            w.back(mark)
    if chance(source, 30):
        value = _end(w, value)
    policy = choice(source, ("vdnn-all", "tvdnn-heuristic", "auto"))
    budget = {} if policy == "vdnn-all" else {"budget": choice(source, (0.5, 0.0))}
    return w.program(
        [value], "one", policy=policy, chunk_size=choice(source, CHUNK_SIZES), **budget
    )


def _stage(w: Writer, x: str) -> str:
    _, c, height, width = w.shape(x)
    form = w.source.integer(1, 11)
    if form <= 3:
        return _convolution(w, x)
    if form == 4:
        return w.line(choice(w.source, ELEMENTWISE), x)
    if form == 5:
        return w.layer("bn", f"nn.BatchNorm2d({c})", x)
    if form == 6:
        pool = choice(w.source, POOLS if chance(w.source, 85) else OTHERS)
        return w.layer("pool", f"nn.{pool}", x)
    if form == 7 and height * width < 300:
        up = choice(w.source, ("nn.Upsample(scale_factor=2)", "nn.ConvTranspose2d(%d, 4, 2, 2)"))
        text = up % c if "%d" in up else up
        return w.layer("up", text, x)
    if form == 10 and height * width < 300:
        return w.layer("up", f"nn.ConvTranspose2d({c}, 4, 2, 2)", x)
    if form in (8, 11):
        shapes = ((height, 1), (1, c, height, 1), (c, 1, 1), (width,))
        shape = choice(w.source, shapes if form == 8 else shapes[:2])
        held = w.member("p", f"nn.Parameter(torch.randn({shape}))")
        return w.line(f"{{0}} * {held}", x)
    return w.line("{0} + {1}", x, w.line("torch.tanh({0})", x))


def _convolution(w: Writer, x: str) -> str:
    c, out = w.shape(x)[1], choice(w.source, (4, 8))
    shapes = ("3, padding=1", "1", "3, padding=1, stride=2", "5, padding=2", "2, stride=2")
    shapes += ("3, padding=2, dilation=2", "(3, 1), padding=(1, 0)", "4, padding=1, stride=2")
    bias = choice(w.source, ("", ", bias=False"))
    conv = f"nn.Conv2d({c}, {out}, {choice(w.source, shapes)}{bias})"
    layers = [conv]
    if chance(w.source, 40):
        layers.append(f"nn.BatchNorm2d({out})")
    if chance(w.source, 60):
        layers.append("nn.ReLU()")
    if chance(w.source, 30):
        layers.append("nn.MaxPool2d(2)")
    if chance(w.source, 20):
        return residual_with_downsample(w, x)
    joined = ", ".join(layers)
    return w.layer("stage", f"nn.Sequential({joined})", x)


def _end(w: Writer, x: str) -> str:
    """A classifier's head, by which nothing goes by bands."""
    pooled = w.line("{0}.mean((2, 3))", x)
    return w.layer("fc", f"nn.Linear({w.shape(x)[1]}, 3)", pooled)
