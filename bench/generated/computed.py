"""Layers whose weights and biases are computed of parameters and buffers: standardized, masked."""

from math import prod

from bench.generated.kinds import channels, kind, settings, sides, sometimes
from bench.generated.source import chance, choice
from bench.generated.writer import Writer

OF_ANY = (
    "{p} * 1.5",
    "{p} * torch.ones_like({p}).cumsum(-1)",
    "{p} - {p}.mean()",
    "{p}.abs() + {p}",
    "{p}.tanh()",
    "{p} / (1 + {p}.norm())",
    "torch.where({p} > 0, {p}, 0.1 * {p})",
    "{p}.flip(-1)",
    "{p}.clone().clamp_(-0.2, 0.2)",
    "torch.cat([{p}[1:], {p}[:1].detach()])",
    "({p}.detach() + {p}) / 2",
)
OF_FILTERS = (
    "({p} - {p}.mean((1, 2, 3), keepdim=True)) / ({p}.std((1, 2, 3), keepdim=True) + 0.1)",
    "F.batch_norm({p}.reshape(1, {k}, -1), None, None, training=True, eps=1e-2).view({shape})",
    "F.batch_norm({p}.view(1, {k}, -1), None, None, {gain}, training=True, eps=0.1).view({shape})",
    "{p} * {gain}.view(-1, 1, 1, 1).exp()",
    "torch._weight_norm({p}, {gain}.view(-1, 1, 1, 1), 0)",
    "{one}.expand({k}, -1, -1, -1)",
    "{p} * {mask}",
)


@kind(4)
def computed_conv2d(w: Writer, x: str) -> str:
    """A convolution by the function, of a weight, and perhaps a bias, that is computed."""
    c, out = w.shape(x)[1], channels(w)
    groups = choice(w.source, [g for g in range(1, c + 1) if c % g == out % g == 0])
    groups = groups if chance(w.source, 40) else 1
    kernel = sides(choice(w.source, (3, 1, 2, (1, 3))))
    shape = (out, c // groups, *kernel)
    weight = _filters(w, _param(w, shape), shape)
    bias = f", {_any(w, _param(w, (out,)))}" if chance(w.source, 40) else ""
    padding = tuple(side // 2 for side in kernel)
    options = settings(groups=None if groups == 1 else groups, stride=sometimes(w, 20, 2))
    return w.line(f"F.conv2d({{0}}, {weight}{bias}, padding={padding}{options})", x)


@kind(2)
def conv2d_of_a_weight_read_twice(w: Writer, x: str) -> str:
    """A layer, and the same weight computed: both give it a gradient."""
    c = w.shape(x)[1]
    depthwise = chance(w.source, 30)
    groups = c if depthwise else 1
    options = settings(padding=1, groups=groups if depthwise else None)
    layer = w.member("conv", f"nn.Conv2d({c}, {c}, 3{options})")
    weight = _filters(w, f"{layer}.weight", (c, c // groups, 3, 3))
    text = f"{layer}({{0}}) + F.conv2d({{0}}, {weight}, {layer}.bias{options})"
    return w.line(text, x)


@kind(2)
def weight_normed_conv2d(w: Writer, x: str) -> str:
    c, out = w.shape(x)[1], channels(w)
    normed = f"nn.utils.parametrizations.weight_norm(nn.Conv2d({c}, {out}, 3, padding=1))"
    return w.layer("conv", normed, x)


@kind(2, "row")
def computed_linear(w: Writer, x: str) -> str:
    features, out = w.shape(x)[1], w.source.integer(1, 20)
    turned = chance(w.source, 20)
    param = _param(w, (features, out) if turned else (out, features))
    weight = f"{param}.t()" if turned else _any(w, param)
    bias = f", {_any(w, _param(w, (out,)))}" if chance(w.source, 40) else ""
    return w.line(f"F.linear({{0}}, {weight}{bias})", x)


@kind(2)
def computed_affine(w: Writer, x: str) -> str:
    """Weights and biases of a normalization, and factors of channels, that are computed."""
    c = w.shape(x)[1]
    gamma, beta = _any(w, _param(w, (c,))), _any(w, _param(w, (c,)))
    form = w.source.integer(0, 2)
    if form == 0:
        return w.line(f"F.batch_norm({{0}}, None, None, 1 + {gamma}, {beta}, training=True)", x)
    if form == 1:
        return w.line(f"F.group_norm({{0}}, 1, 1 + {gamma}, {beta})", x)
    return w.line(f"{{0}} * (1 + {gamma}).view(1, -1, 1, 1) + ({beta}).view(-1, 1, 1)", x)


def _filters(w: Writer, param: str, shape: tuple[int, ...]) -> str:
    """A computation on filters. Filters of one number are not normalized."""
    if chance(w.source, 40) or prod(shape[1:]) < 2:
        return _any(w, param)
    text = choice(w.source, OF_FILTERS)
    given = {"p": param, "k": str(shape[0]), "shape": ", ".join(map(str, shape))}
    if "{gain}" in text:
        given["gain"] = _param(w, shape[:1])
    if "{one}" in text:
        given["one"] = _param(w, (1, *shape[1:]))
    if "{mask}" in text:
        given["mask"] = w.member("mask", f"nn.Buffer((torch.rand{shape} > 0.4).float())")
    return text.format(**given)


def _any(w: Writer, param: str) -> str:
    return choice(w.source, OF_ANY).format(p=param)


def _param(w: Writer, shape: tuple[int, ...]) -> str:
    return w.member("p", f"nn.Parameter(0.3 * torch.randn{shape})")
