"""Views, permutations, channel ranges, concatenations: what moves values and computes nothing."""

from math import prod

from bench.generated.kinds import kind
from bench.generated.source import chance, choice
from bench.generated.writer import RejectedError, Writer


@kind(6)
def flatten(w: Writer, x: str) -> str:
    if prod(w.shape(x)[1:]) > 700:
        raise RejectedError("too many features")
    texts = ("{0}.flatten(1)", "torch.flatten({0}, 1)", "{0}.view({0}.size(0), -1)")
    texts += ("{0}.reshape({0}.shape[0], -1)", "{0}.reshape(len({0}), -1)")
    if chance(w.source, 30):
        return w.layer("flat", "nn.Flatten()", x)
    return w.line(choice(w.source, texts), x)


@kind(2, "row")
def unflatten(w: Writer, x: str) -> str:
    """A row as a map of one pixel, or of as many as divide it."""
    n, f = w.shape(x)
    sizes = [side for side in (1, 1, 2, 3) if f % (side * side) == 0]
    side = choice(w.source, sizes)
    shape = (n, f // side**2, side, side)
    texts = [f"{{0}}.view{shape}", f"{{0}}.reshape{shape}"]
    texts += ["{0}[:, :, None, None]", "{0}.unsqueeze(2).unsqueeze(3)"] if side == 1 else []
    return w.line(choice(w.source, texts), x)


@kind(3)
def view_of_other_sides(w: Writer, x: str) -> str:
    """A map's pixels counted as other rows and columns."""
    n, c, height, width = w.shape(x)
    pixels = height * width
    rows = choice(w.source, [r for r in range(1, pixels + 1) if pixels % r == 0])
    shape = (n, c, rows, pixels // rows)
    return w.line(choice(w.source, (f"{{0}}.view{shape}", f"{{0}}.reshape{shape}")), x)


@kind(2)
def view_of_a_line(w: Writer, x: str) -> str:
    """A map's pixels as one dimension, and back later."""
    return w.line(choice(w.source, ("{0}.flatten(2)", "torch.flatten({0}, 2)")), x)


@kind(8, "line")
def view_of_a_map(w: Writer, x: str) -> str:
    n, c, length = w.shape(x)
    rows = choice(w.source, [r for r in range(1, length + 1) if length % r == 0])
    return w.line(f"{{0}}.view({n}, {c}, {rows}, {length // rows})", x)


@kind(3)
def permute(w: Writer, x: str) -> str:
    texts = ("{0}.permute(0, 2, 3, 1)", "torch.permute({0}, (0, 2, 3, 1))")
    return w.line(choice(w.source, texts), x, permuted=True)


@kind(8, "last")
def permute_back(w: Writer, x: str) -> str:
    return w.line(choice(w.source, ("{0}.permute(0, 3, 1, 2)", "{0}.permute((0, 3, 1, 2))")), x)


@kind(1)
def transpose_twice(w: Writer, x: str) -> str:
    turned = choice(w.source, ("{0}.transpose(2, 3)", "torch.transpose({0}, -1, -2)"))
    return w.line(f"{turned}.transpose(2, 3)", x)


@kind(1, "map", "row", "line")
def contiguous(w: Writer, x: str) -> str:
    return w.line("{0}.contiguous()", x)


@kind(1, "row")
def squeeze(w: Writer, x: str) -> str:
    texts = ("{0}.unsqueeze(2).squeeze(2)", "torch.unsqueeze({0}, -1).squeeze(-1)")
    return w.line(choice(w.source, texts), x)


@kind(2)
def squeeze_pixels(w: Writer, x: str) -> str:
    if w.shape(x)[2:] != (1, 1) or 1 in w.shape(x)[:2]:
        raise RejectedError("more than one pixel")
    texts = ("{0}.squeeze(3).squeeze(2)", "{0}.squeeze(-1).squeeze(-1)", "{0}.squeeze()")
    return w.line(choice(w.source, texts), x)


@kind(4, "map", "row")
def channel_range(w: Writer, x: str) -> str:
    c = w.shape(x)[1]
    start = w.source.integer(0, c - 1)
    stop = w.source.integer(start + 1, c)
    texts = (
        f"{{0}}[:, {start}:{stop}]",
        f"torch.narrow({{0}}, 1, {start}, {stop - start})",
        f"{{0}}.narrow(1, {start}, {stop - start})",
        f"{{0}}[:, {start - c}:]",
        f"{{0}}[:, :{stop}]",
    )
    return w.line(choice(w.source, texts), x)


@kind(1)
def one_channel(w: Writer, x: str) -> str:
    return w.line(f"{{0}}[:, {w.source.integer(0, w.shape(x)[1] - 1)}].unsqueeze(1)", x)


@kind(4, "map", "row")
def split(w: Writer, x: str) -> str:
    """Parts of the channels; all are there to be read."""
    c = w.shape(x)[1]
    first = w.source.integer(1, max(1, c - 1))
    form = w.source.integer(0, 3)
    if form == 0 and c > 1:
        return w.parts(f"torch.split({{0}}, [{first}, {c - first}], 1)", x, count=2)[0]
    if form == 1:
        return w.parts(f"{{0}}.split({first}, dim=1)", x, count=-(-c // first))[0]
    return w.parts("{0}.chunk(2, 1)" if form == 2 else "torch.chunk({0}, 2, dim=1)", x, count=2)[0]


@kind(8, "map", "row")
def concat(w: Writer, x: str) -> str:
    names = [x, *(w.pick(_beside(w, x)) for _ in range(w.source.integer(1, 3)))]
    if sum(w.shape(name)[1] for name in names) > 200:
        raise RejectedError("too many channels")
    if chance(w.source, 50):
        names.reverse()
    listed = ", ".join(f"{{{number}}}" for number in range(len(names)))
    dim = choice(w.source, ("1", "dim=1", "-3" if w.kind(x) == "map" else "-1"))
    function = choice(w.source, ("torch.cat", "torch.cat", "torch.concat"))
    return w.line(f"{function}([{listed}], {dim})", *names)


@kind(2)
def channel_shuffle(w: Writer, x: str) -> str:
    n, c, height, width = w.shape(x)
    groups = choice(w.source, [g for g in range(1, c + 1) if c % g == 0])
    if chance(w.source, 50):
        return w.layer("mix", f"nn.ChannelShuffle({groups})", x)
    apart = w.line(f"{{0}}.view({n}, {groups}, {c // groups}, {height}, {width})", x)
    turned = w.line("{0}.transpose(1, 2)", apart)
    return w.line(f"{{0}}.reshape({n}, {c}, {height}, {width})", turned)


@kind(1, "map", "row", "last", "line")
def another_name(w: Writer, x: str) -> str:
    """A second name of the same tensor, or a layer that returns what it is given."""
    text = choice(w.source, ("{0}", f"{w.member('same', 'nn.Identity()')}({{0}})"))
    return w.line(text, x, permuted=w.kind(x) == "last")


def _beside(w: Writer, x: str) -> list[str]:
    """Values that may be concatenated with `x` along channels."""
    n, _, *size = w.shape(x)
    fits = [y for y in w.named(w.kind(x)) if (w.shape(y)[0], *w.shape(y)[2:]) == (n, *size)]
    return [y for y in fits if w.shape(y)[1] <= 64]
