"""Maps that forward writes over in place, through views and parts of them, and reads again."""

from bench.generated.kinds import kind
from bench.generated.motifs import conv_to
from bench.generated.source import chance, choice
from bench.generated.writer import RejectedError, Writer

VIEWS = (
    "{0}[:, :1]",
    "{0}[:, :, 1:]",
    "{0}[..., :1]",
    "{0}[:, :, -1:, :1]",
    "{0}[:, 0]",
    "{0}[:, :, 0]",
    "{0}.select(3, 0)",
    "{0}.transpose(2, 3)",
    "{0}.permute(0, 2, 3, 1)",
    "{0}.movedim(1, 3)",
    "{0}.unsqueeze(1)",
    "{0}.flatten(2)",
    "{0}.flatten(1)",
    "{0}.narrow(2, 0, 1)",
    "{0}[:, :1].transpose(2, 3)",
    "{0}.transpose(2, 3)[:, :, :1]",
    "{0}.flatten(2)[:, :, :1]",
    "{0}.detach()",
    "{0}.detach()[:, :1]",
)
CHANGES = ("{0}.mul_(0.5)", "{0} += 1", "{0}.add_(0.25)", "{0}.tanh_()", "{0}.copy_({0} * 2)")
CHANGES += ("{0} **= 2", "{0} /= 2")


@kind(5, changes=True)
def change_through_a_view(w: Writer, x: str) -> str:
    """h changes by what is written to a part or a view of it, and is read again."""
    h = conv_to(w, x, w.shape(x)[1]) if chance(w.source, 60) else w.line("{0} * 1.5", x)
    view = w.line(choice(w.source, VIEWS), h)
    w.change(choice(w.source, CHANGES), view)
    if chance(w.source, 40):
        w.line("{0} * 2", view)
    w.dead.add(view)
    return w.line(choice(w.source, ("{0} * 1.5", "{0} + 1", "torch.tanh({0})")), h)


@kind(2, changes=True)
def change_without_gradients(w: Writer, x: str) -> str:
    """Values change in a region without gradients, and the gradient stays."""
    h = conv_to(w, x, w.shape(x)[1])
    before = w.line("{0}.flatten(2)", h)
    w.no_grad = True
    w.change(choice(w.source, CHANGES), h)
    w.no_grad = False
    return w.line("{0} * 2 + {1}.view({0}.shape)", h, before)


@kind(2, changes=True)
def parts_before_a_change(w: Writer, x: str) -> str:
    """Parts of a map that is changed before they are read."""
    if w.shape(x)[1] < 2:
        raise RejectedError("one channel")
    h = conv_to(w, x, 2 * w.shape(x)[1])
    text = choice(w.source, ("{0}.chunk(2, 1)", "torch.split({0}, [1, {0}.shape[1] - 1], 1)"))
    first, second = w.parts(text, h, count=2)
    w.change(choice(w.source, ("{0}.mul_(2)", "{0} += 0.5", "{0}.tanh_()")), h)
    return w.line("torch.cat([{0}, {1}.tanh()], 1)", second, first)


@kind(3, changes=True)
def items_written(w: Writer, x: str) -> str:
    """y[:, :1] = ..., y[:, 0] += ..., and the like."""
    how = choice(w.source, (0, 1, 2, 4, 5, 6))
    return w.layer("part", f"Writing({how})", x)


@kind(1, changes=True)
def detached_parts(w: Writer, x: str) -> str:
    """A map that is changed, detached and changed again."""
    value = w.line("{0} * 0.5", x)
    w.change("{0}.mul_(2)", value)
    w.change("{0}.detach_()", value)
    w.change("{0}.add_(1)", value)
    return w.line("{0} + {1}", value, x)
