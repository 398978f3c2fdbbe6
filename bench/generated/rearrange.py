"""Pads, slices, rolls, flips, repeats, stacks, and concatenations along any dimension."""

from bench.generated.kinds import channels, kind
from bench.generated.source import chance, choice
from bench.generated.writer import RejectedError, Writer

LARGE = 600  # pixels of a map that is not made larger


@kind(4)
def pad(w: Writer, x: str) -> str:
    *_, height, width = w.shape(x)
    _small(w, x)
    mode = choice(w.source, ("constant", "reflect", "replicate", "circular"))
    most = {"constant": 3, "replicate": 3}.get(mode, min(height, width) - 1)
    sizes = tuple(w.source.integer(0, max(0, min(3, most))) for _ in range(4))
    if mode == "constant" and chance(w.source, 15):
        sizes = (-1, *sizes[1:]) if width > 1 else sizes
    if mode == "constant" and chance(w.source, 40):
        value = choice(w.source, ("", ", value=0.5", ", 'constant', 0"))
        return w.line(f"F.pad({{0}}, {sizes}{value})", x)
    if chance(w.source, 40) and min(sizes) >= 0:
        layers = {"constant": "ZeroPad2d", "reflect": "ReflectionPad2d"}
        layers |= {"replicate": "ReplicationPad2d", "circular": "CircularPad2d"}
        size = choice(w.source, (sizes, sizes[0]))
        return w.layer("pad", f"nn.{layers[mode]}({size})", x)
    return w.line(f"F.pad({{0}}, {sizes}, mode={mode!r})", x)


@kind(2)
def pad_of_channels(w: Writer, x: str) -> str:
    """ResNets' shortcut without parameters: zeros as further channels."""
    sizes = (0, 0, 0, 0, w.source.integer(0, 2), w.source.integer(0, 3))
    return w.line(f"F.pad({{0}}, {sizes})", x)


@kind(3)
def padded_conv2d(w: Writer, x: str) -> str:
    """A convolution behind a pad, which it may take as its own, or with another padding mode."""
    c, out = w.shape(x)[1], channels(w)
    if chance(w.source, 50):
        even, uneven = ((1, 1, 1, 1), (2, 2, 2, 2)), ((0, 1, 0, 1), (1, 2, 1, 2), (0, 1, 1, 1))
        around = choice(w.source, (*even, *uneven))
        padded = w.line(f"F.pad({{0}}, {around})", x)
        stride = choice(w.source, (1, 2))
        return w.layer("conv", f"nn.Conv2d({c}, {out}, 3, stride={stride})", padded)
    mode = choice(w.source, ("reflect", "replicate", "circular"))
    layer = f"nn.Conv2d({c}, {out}, 3, padding=1, padding_mode={mode!r})"
    return w.layer("conv", layer, x)


@kind(4)
def slice_of_pixels(w: Writer, x: str) -> str:
    *_, height, width = w.shape(x)
    top, left = w.source.integer(0, height - 1), w.source.integer(0, width - 1)
    texts = (
        f"{{0}}[:, :, {top}:, :]",
        f"{{0}}[:, :, {top}:, {left}:]",
        "{0}[:, :, ::2, ::2]",
        "{0}[:, :, 1::2, :]",
        f"{{0}}[..., {left}:]",
        "{0}[..., ::3]",
        f"{{0}}[:, :, :{height - top}, :{width - left}]",
        f"{{0}}.narrow(2, {top}, {height - top})",
        "{0}[:, ::2]",
        "{0}[:, :, -1:, :]",
    )
    return w.line(choice(w.source, texts), x)


@kind(2)
def roll(w: Writer, x: str) -> str:
    texts = ("torch.roll({0}, (1, -2), (2, 3))", "{0}.roll(1, 1)", "torch.roll({0}, 2, dims=3)")
    return w.line(choice(w.source, texts), x)


@kind(2)
def flip(w: Writer, x: str) -> str:
    texts = ("torch.flip({0}, (3,))", "{0}.flip(1)", "{0}.flip((2, 3))", "torch.flip({0}, [-1])")
    return w.line(choice(w.source, texts), x)


@kind(2)
def repeat(w: Writer, x: str) -> str:
    _small(w, x)
    texts = ("{0}.repeat(1, 2, 1, 1)", "{0}.repeat(1, 1, 2, 2)", "torch.tile({0}, (1, 1, 1, 2))")
    return w.line(choice(w.source, texts), x)


@kind(2)
def expanded(w: Writer, x: str) -> str:
    """One pixel as a whole map: the image pooling of DeepLab."""
    n, c, height, width = w.shape(x)
    pooled = w.line("{0}.mean((2, 3), keepdim=True)", x)
    texts = (
        f"{{0}}.expand({n}, {c}, {height}, {width})",
        f"{{0}}.expand(-1, -1, {height}, {width})",
    )
    if chance(w.source, 30):
        return w.line("{0}.expand_as({1})", pooled, x)
    return w.line(choice(w.source, texts), pooled)


@kind(3)
def stack(w: Writer, x: str) -> str:
    """Maps stacked and reduced, or their channels interleaved."""
    other = w.pick([x, *w.alike(x)])
    n, c, height, width = w.shape(x)
    form = w.source.integer(0, 2)
    if form == 0:
        stacked = w.line("torch.stack([{0}, {1}], 1)", x, other)
        return w.line("{0}.flatten(1, 2)", stacked)
    if form == 1:
        stacked = w.line("torch.stack([{0}, {1}], dim=2)", x, other)
        return w.line(f"{{0}}.reshape({n}, {2 * c}, {height}, {width})", stacked)
    stacked = w.line("torch.stack(({0}, {1}), dim=2)", x, other)
    return w.line("{0}[:, :, 0] + {0}[:, :, 1]", stacked)


@kind(2)
def concat_of_pixels(w: Writer, x: str) -> str:
    _small(w, x)
    dim = choice(w.source, (2, 3))
    n, c, *size = w.shape(x)
    fits = [y for y in w.named("map") if w.shape(y)[:2] == (n, c)]
    other = w.pick([y for y in fits if w.shape(y)[5 - dim] == size[3 - dim]])
    return w.line(f"torch.cat([{{0}}, {{1}}], {choice(w.source, (dim, dim - 4))})", x, other)


@kind(3)
def pixel_shuffle(w: Writer, x: str) -> str:
    _, c, height, width = w.shape(x)
    if c % 4 == 0 and chance(w.source, 60):
        _small(w, x)
        texts = ("F.pixel_shuffle({0}, 2)", f"{w.member('mix', 'nn.PixelShuffle(2)')}({{0}})")
        return w.line(choice(w.source, texts), x)
    if height % 2 or width % 2 or c > 40:
        raise RejectedError("an odd number of rows or columns")
    texts = ("F.pixel_unshuffle({0}, 2)", f"{w.member('mix', 'nn.PixelUnshuffle(2)')}({{0}})")
    return w.line(choice(w.source, texts), x)


@kind(2, "row")
def unflatten_layer(w: Writer, x: str) -> str:
    f = w.shape(x)[1]
    sizes = (f, 1, 1) if f % 4 or chance(w.source, 30) else (f // 4, 2, 2)
    texts = (
        f"{{0}}.unflatten(1, {sizes})",
        f"{w.member('un', f'nn.Unflatten(1, {sizes})')}({{0}})",
    )
    return w.line(choice(w.source, texts), x)


@kind(2)
def parts_of_rows(w: Writer, x: str) -> str:
    """A map cut along its rows or columns."""
    dim = choice(w.source, (2, 3))
    if w.shape(x)[dim] < 2:
        raise RejectedError("one row")
    texts = (f"{{0}}.chunk(2, {dim})", f"torch.tensor_split({{0}}, 2, dim={dim})")
    return w.parts(choice(w.source, texts), x, count=2)[0]


@kind(1)
def moved(w: Writer, x: str) -> str:
    texts = ("torch.movedim({0}, 1, -1)", "{0}.movedim(1, 3)", "torch.moveaxis({0}, 1, 3)")
    return w.line(choice(w.source, texts), x, permuted=True)


@kind(1)
def turned(w: Writer, x: str) -> str:
    """Rows and columns changed."""
    texts = ("{0}.transpose(2, 3)", "{0}.permute(0, 1, 3, 2)", "torch.swapaxes({0}, 2, 3)")
    return w.line(choice(w.source, texts), x)


def _small(w: Writer, x: str) -> None:
    if w.values[x][0].numel() > LARGE:
        raise RejectedError("large enough")
