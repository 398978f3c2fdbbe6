"""Modules as networks hold them: lazy, opaque, checkpointed, asking, of several names."""

from bench.generated.kinds import channels, kind
from bench.generated.motifs import conv_to
from bench.generated.source import chance, choice
from bench.generated.writer import RejectedError, Writer

LAZY = (
    "nn.LazyConv2d(OUT, 3, padding=1)",
    "nn.LazyConv2d(OUT, 1, bias=False)",
    "nn.LazyConvTranspose2d(OUT, 2)",
    "nn.LazyBatchNorm2d()",
    "nn.LazyBatchNorm2d(affine=False)",
)
OPAQUE = (
    "Running(CHANNELS)",
    "Running(CHANNELS)",
    "Turning()",
    "Flat()",
    "Regional()",
    "Applying()",
    "nn.Softshrink(0.1)",
    "nn.Tanhshrink()",
    "nn.Softmin(1)",
)


@kind(2)
def lazy_layer(w: Writer, x: str) -> str:
    """A layer that takes its sizes from its first input."""
    text = choice(w.source, LAZY).replace("OUT", str(channels(w)))
    return w.layer("lazy", text, x)


@kind(1, "row")
def lazy_layer_of_rows(w: Writer, x: str) -> str:
    text = choice(w.source, ("nn.LazyLinear(4)", "nn.LazyBatchNorm1d()"))
    return w.line(f"{w.member('lazy', text)}(input={{0}})", x)


@kind(1, "line")
def lazy_layer_of_a_line(w: Writer, x: str) -> str:
    text = choice(w.source, ("nn.LazyConv1d(4, 1)", "nn.LazyBatchNorm1d()"))
    return w.layer("lazy", text, x)


@kind(4)
def opaque_part(w: Writer, x: str) -> str:
    """A submodule that tvdnn has no ops for and runs as it is."""
    text = choice(w.source, OPAQUE).replace("CHANNELS", str(w.shape(x)[1]))
    if chance(w.source, 35):
        x = w.line("{0}.detach()", x)
    return w.layer("opaque", text, x)


@kind(1)
def two_opaque_calls(w: Writer, x: str) -> str:
    """One opaque submodule called twice, the second time by the name of its argument.

    Or one of two maps, which are one at times, and of two results.
    """
    if chance(w.source, 50):
        others = [y for y in w.alike(x) if y != x]
        other = choice(w.source, others) if others and chance(w.source, 60) else x
        return w.line(f"{w.member('opaque', 'OfTwo()')}({{0}}, y={{1}})[0]", x, other)
    part = w.member("opaque", f"Running({w.shape(x)[1]})")
    return w.line(f"{part}(x={part}({{0}}))", x)


@kind(1, "last")
def opaque_part_of_turned_maps(w: Writer, x: str) -> str:
    return w.layer("opaque", "nn.Tanhshrink()", x, permuted=True)


@kind(2)
def checkpointed(w: Writer, x: str) -> str:
    c = w.shape(x)[1]
    return w.layer("part", f"Checkpointed({c}, {choice(w.source, (False, True))})", x)


@kind(2)
def asking(w: Writer, x: str) -> str:
    """A forward that goes by what is known of a map: its sizes, type, gradient."""
    return w.layer("part", "Asking()", x)


@kind(2)
def counted_by_the_network(w: Writer, x: str) -> str:
    """A batch normalization by its function, with a count of batches that forward keeps."""
    c = w.shape(x)[1]
    layer = w.member("bn", f"nn.BatchNorm2d({c})")
    if not w.training:
        raise RejectedError("a count is kept in training")
    count = f"{layer}.num_batches_tracked"
    w.change(choice(w.source, (f"{count}.add_(1)", f"{count} += 1")))
    state = f"{layer}.running_mean, {layer}.running_var, {layer}.weight, {layer}.bias"
    return w.line(f"F.batch_norm({{0}}, {state}, True, 0.2)", x)


@kind(1)
def running_statistics_alone(w: Writer, x: str) -> str:
    """Statistics that the network keeps and no layer's count of batches."""
    c = w.shape(x)[1]
    layer = w.member("bn", f"nn.BatchNorm2d({c}, affine=False)")
    state = f"running_mean={layer}.running_mean, running_var={layer}.running_var"
    return w.line(f"F.batch_norm(input={{0}}, {state}, training={w.training})", x)


@kind(2)
def dropped_branch(w: Writer, x: str) -> str:
    """Stochastic depth or dropout of all of a branch, and layers behind it."""
    branch = conv_to(w, x, w.shape(x)[1], 3)
    texts = ("tvdnn.nn.StochasticDepth(1.0, 'row')", "tvdnn.nn.StochasticDepth(1.0, 'batch')")
    texts += ("DropPath(0.0)", "DropPath()", "nn.Dropout2d(0.0)")
    texts += ("nn.Dropout2d(1.0)", "nn.Dropout(1.0)", "tvdnn.nn.StochasticDepth(0.0, 'batch')")
    dropped = w.layer("drop", choice(w.source, texts), branch)
    return w.line("{0} + {1}", x, dropped)


@kind(2, "row")
def classifier(w: Writer, x: str) -> str:
    """VGG's: linear layers, ReLUs and dropout, here of nothing or of all."""
    features = w.shape(x)[1]
    p = choice(w.source, (0.0, 1.0)) if w.training else 0.5
    layers = f"nn.Linear({features}, 8), nn.ReLU(), nn.Dropout({p}), nn.Linear(8, 6)"
    return w.layer("head", f"nn.Sequential({layers})", x)


@kind(3)
def pooled_convolution(w: Writer, x: str) -> str:
    """conv, ReLU and a pooling of quarters, which are one kernel where channels come in fours."""
    c, out = w.shape(x)[1], choice(w.source, (4, 8, 6, 12))
    pool = choice(w.source, ("nn.MaxPool2d(2)", "nn.MaxPool2d(2, 2)", "nn.MaxPool2d(3, 2)"))
    conv = f"nn.Conv2d({c}, {out}, 3, padding=1{choice(w.source, ('', ', bias=False'))})"
    return w.layer("stage", f"nn.Sequential({conv}, nn.ReLU(), {pool})", x)


@kind(4)
def wide_layers(w: Writer, x: str) -> str:
    """Channels in whole words of 16 bytes, for which convolutions leave moments behind."""
    w.at_most(x, 150)
    c = w.shape(x)[1]
    out, stride = choice(w.source, ((64, 1), (128, 1), (64, 2), (32, 1)))
    first = f"nn.Conv2d({c}, {out}, 3, padding=1, stride={stride}, bias=False)"
    last = f"nn.Conv2d({out}, {out}, {choice(w.source, (1, 3))}, padding=1)"
    layers = f"{first}, nn.BatchNorm2d({out}), nn.ReLU(), {last}, nn.BatchNorm2d({out})"
    value = w.layer("wide", f"nn.Sequential({layers})", x)
    if chance(w.source, 50):
        again = f"nn.Sequential(nn.Conv2d({out}, {out}, 1), nn.BatchNorm2d({out}))"
        value = w.layer("wide", again, value)
    return w.layer("narrow", f"nn.Conv2d({out}, 4, 1)", value)
