"""Products and sums of any broadcast shape, and weights computed from parameters."""

from bench.generated.kinds import kind
from bench.generated.source import choice
from bench.generated.writer import Writer


@kind(5)
def broadcast_parameter(w: Writer, x: str) -> str:
    """A sum or product with a parameter or buffer of some shape that broadcasts."""
    _, c, height, width = w.shape(x)
    shapes = ((1, c, 1, 1), (height, width), (1, 1, height, width), (c, height, width), (width,))
    shapes += ((height, 1), (1, 1, 1, 1), (), (1, c, height, 1))
    init = f"torch.randn({choice(w.source, shapes)})"
    kind_of = choice(w.source, ("Parameter", "Parameter", "Buffer"))
    param = w.member("p", f"nn.{kind_of}({init})")
    texts = ("{0} * %s", "%s * {0}", "{0} + %s", "{0} - %s", "torch.mul({0}, %s)", "%s - {0}")
    return w.line(choice(w.source, texts) % param, x)


@kind(4)
def broadcast_maps(w: Writer, x: str) -> str:
    """Two maps of which one has one row, column or channel."""
    made = choice(
        w.source,
        (
            "{0}.mean(1, keepdim=True)",
            "{0}.mean(2, keepdim=True)",
            "{0}.mean((2, 3), keepdim=True)",
            "{0}[:, :1]",
            "{0}[:, :, :1, :]",
        ),
    )
    small = w.line(made, x)
    texts = ("{0} * {1}", "{0} + {1}", "{0} - {1}", "{1} - {0}", "{0} / ({1} ** 2 + 1)")
    return w.line(choice(w.source, texts), x, small)


@kind(2)
def layer_scale(w: Writer, x: str) -> str:
    """ConvNeXt's scale of a branch, here of maps [N, H, W, C]."""
    c = w.shape(x)[1]
    scale = w.member("p", f"nn.Parameter(0.1 * torch.ones({c}))")
    turned = w.line("{0}.permute(0, 2, 3, 1)", x, permuted=True)
    scaled = w.line(f"{scale} * {{0}}", turned, permuted=True)
    return w.line("{0} + {1}.permute(0, 3, 1, 2)", x, scaled)


@kind(2)
def global_response_norm(w: Writer, x: str) -> str:
    """ConvNeXt V2's normalization by the norms of channels."""
    c = w.shape(x)[1]
    scale = w.member("p", f"nn.Parameter(torch.randn(1, {c}, 1, 1))")
    norms = w.line("torch.norm({0}, p=2, dim=(2, 3), keepdim=True)", x)
    share = w.line("{0} / ({0}.mean(dim=1, keepdim=True) + 1e-6)", norms)
    return w.line(f"{{0}} + {scale} * ({{0}} * {{1}})", x, share)


@kind(3)
def quotient_of_maps(w: Writer, x: str) -> str:
    other = w.pick([x, *w.alike(x)])
    texts = ("{0} / ({1}.abs() + 1)", "torch.div({0}, {1} ** 2 + 1)", "torch.maximum({0}, {1})")
    texts += ("torch.minimum({0}, {1})",)
    return w.line(choice(w.source, texts), x, other)


@kind(3, planned=True)
def standardized_conv2d(w: Writer, x: str) -> str:
    """A convolution whose weight is computed: standardized, scaled, or of another's parameters."""
    c = w.shape(x)[1]
    conv = w.member("conv", f"nn.Conv2d({c}, {c}, 3, padding=1)")
    weights = (
        f"({conv}.weight - {conv}.weight.mean((1, 2, 3), keepdim=True))",
        f"{conv}.weight * 0.5",
        f"{conv}.weight / {conv}.weight.norm()",
        f"F.batch_norm({conv}.weight.reshape(1, {c}, -1), None, None, training=True, "
        f"eps=1e-3).reshape_as({conv}.weight)",
    )
    return w.line(f"F.conv2d({{0}}, {choice(w.source, weights)}, {conv}.bias, padding=1)", x)
