"""Networks that read what lies outside them, ask of maps and parameters, and name classes."""

from bench.generated.kinds import kind
from bench.generated.motifs import conv_to
from bench.generated.refused import layer
from bench.generated.source import chance, choice
from bench.generated.writer import Writer


@kind(2)
def reads_outside(w: Writer, x: str) -> str:
    """Globals, attributes of classes and objects, and what functions enclose."""
    return layer(w, x, f"Reading({w.source.integer(0, 6)})")


@kind(2)
def inspects(w: Writer, x: str) -> str:
    """Forward goes by what a map and a parameter say of themselves."""
    x = "x" if w.kind("x") == "map" and chance(w.source, 30) else x
    return layer(w, x, f"Inspecting({w.source.integer(0, 8)}, CHANNELS)")


@kind(1)
def names_type(w: Writer, x: str) -> str:
    return layer(w, x, "Typed()")


@kind(1)
def parameter_meets_a_tensor(w: Writer, x: str) -> str:
    """A parameter and a tensor that forward makes, or an autograd Function of parameters alone."""
    c = w.shape(x)[1]
    own = w.member("own", f"nn.Parameter(torch.randn({c}, 1, 1))")
    texts = (
        f"{{0}} * ({own} * torch.full(({c}, 1, 1), 0.5))",
        f"{{0}} + {own} * torch.ones({c}, 1, 1)",
    )
    texts += (f"{{0}} * {own}.to({own}.device)", f"{{0}} * Doubling.apply({own}, 2)")
    return w.line(choice(w.source, texts), x)


@kind(2, changes=True)
def copied_behind_a_write(w: Writer, x: str) -> str:
    """A reshape of turned maps copies: a write to one side does not show on the other."""
    h = conv_to(w, x, w.shape(x)[1]) if chance(w.source, 60) else w.line("{0} * 1.5", x)
    n, c, height, width = w.shape(x)
    text = choice(
        w.source,
        (
            f"{{0}}.transpose(2, 3).reshape({n}, {c}, {height * width})",
            "{0}.transpose(2, 3).flatten(2)",
        ),
    )
    copy = w.line(text, h)
    w.change(
        choice(w.source, ("{0}.mul_(2)", "{0} += 0.5", "{0}.tanh_()")),
        *([h] if chance(w.source, 60) else [copy]),
    )
    return w.line("{0} * 2 + {1}.view({0}.shape)", h, copy)


@kind(6, refused=True)
def refused_change_outside(w: Writer, x: str) -> str:
    """Forward changes globals, attributes of classes, lists, or draws from a generator."""
    return layer(w, x, f"Changing({w.source.integer(0, 15)})")


@kind(3, refused=True)
def refused_question(w: Writer, x: str) -> str:
    return layer(w, x, f"Puzzling({w.source.integer(0, 6)}, CHANNELS)")


@kind(2, refused=True)
def refused_layout(w: Writer, x: str) -> str:
    """A forward that depends on the memory format of inputs that are not contiguous."""
    return layer(w, x, f"Laid({chance(w.source, 50)})")
