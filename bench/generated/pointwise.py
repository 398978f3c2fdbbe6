"""Activations, arithmetic, softmax: as layers, functions, methods, operators, and in place."""

from bench.generated.kinds import kind
from bench.generated.source import chance, choice
from bench.generated.writer import RejectedError, Writer

ANY = ("map", "row", "last", "line", "groups")
LAYERS = (
    "ReLU()",
    "ReLU(inplace=True)",
    "LeakyReLU()",
    "LeakyReLU(0.3)",
    "ReLU6()",
    "ELU()",
    "ELU(0.5)",
    "SiLU()",
    "GELU()",
    "GELU('tanh')",
    "Sigmoid()",
    "Tanh()",
    "Hardswish()",
    "Hardsigmoid()",
    "SiLU(inplace=True)",
    "LeakyReLU(0.1, inplace=True)",
    "ReLU6(inplace=True)",
    "ELU(inplace=True)",
    "Hardswish(inplace=True)",
    "Hardsigmoid(inplace=True)",
)
CALLS = (
    "F.relu({0})",
    "torch.relu({0})",
    "{0}.relu()",
    "torch.sigmoid({0})",
    "{0}.sigmoid()",
    "torch.tanh({0})",
    "{0}.tanh()",
    "F.leaky_relu({0}, 0.2)",
    "F.leaky_relu({0}, negative_slope=0.0)",
    "F.elu({0})",
    "F.elu({0}, alpha=2.0)",
    "F.gelu({0})",
    "F.gelu({0}, approximate='tanh')",
    "F.silu({0})",
    "F.hardswish({0})",
    "F.hardsigmoid({0})",
    "F.relu6({0})",
    "F.hardtanh({0}, 0.0, 6.0)",
    "F.sigmoid({0})",
    "F.tanh({0})",
)
RESULTS_IN_PLACE = (
    "F.relu({0}, inplace=True)",
    "F.relu_({0})",
    "torch.relu_({0})",
    "{0}.relu_()",
    "{0}.sigmoid_()",
    "torch.sigmoid_({0})",
    "{0}.tanh_()",
    "torch.tanh_({0})",
    "F.leaky_relu({0}, 0.2, inplace=True)",
    "F.leaky_relu_({0})",
    "F.elu({0}, inplace=True)",
    "F.elu_({0})",
    "F.silu({0}, inplace=True)",
    "F.hardswish({0}, inplace=True)",
    "F.hardsigmoid({0}, inplace=True)",
    "F.relu6({0}, inplace=True)",
    "F.hardtanh_({0}, 0.0, 6.0)",
)
WITH_NUMBERS = (
    "{0} * 0.5",
    "{0} + 1",
    "2 * {0}",
    "1 - {0}",
    "{0} - 0.5",
    "{0} / 2",
    "-{0}",
    "torch.neg({0})",
    "{0}.neg()",
    "torch.mul({0}, -1.5)",
    "{0}.add(0.3)",
    "torch.add({0}, 2, alpha=0.5)",
    "torch.sub({0}, 2, alpha=0.5)",
    "{0}.sub(1)",
    "{0}.div(4)",
    "torch.div({0}, 0.5)",
    "0.5 * {0} + 1",
)
IN_PLACE = (
    "{0} += {1}",
    "{0} -= {1}",
    "{0} *= 2",
    "{0} /= 2",
    "{0}.add_({1})",
    "{0}.add_(1)",
    "{0}.mul_(0.5)",
    "{0}.sub_({1})",
    "{0}.neg_()",
    "{0}.div_(2)",
    "{0} += 0.5",
    "{0}.relu_()",
    "{0} *= {1}",
    "{0}.mul_({1})",
    "{0}.add_({1}, alpha=0.5)",
    "F.relu({0}, inplace=True)",
)
SUMS = (
    "{0} + {1}",
    "{0} - {1}",
    "torch.add({0}, {1})",
    "torch.add({0}, {1}, alpha=0.5)",
    "torch.sub({0}, {1})",
    "torch.sub({0}, {1}, alpha=2)",
    "{0}.add({1})",
    "{0}.sub({1})",
    "{0}.add({1}, alpha=-1)",
)
PRODUCTS = ("{0} * {1}", "torch.mul({0}, {1})", "{0}.mul({1})")


@kind(14, *ANY)
def activation_layer(w: Writer, x: str) -> str:
    layer = w.member("act", f"nn.{choice(w.source, LAYERS)}")
    return _like(w, f"{layer}({{0}})", x)


@kind(10, *ANY)
def activation_call(w: Writer, x: str) -> str:
    return _like(w, choice(w.source, CALLS), x)


@kind(5, *ANY, changes=True)
def activation_in_place(w: Writer, x: str) -> str:
    return _like(w, choice(w.source, RESULTS_IN_PLACE), x)


@kind(7, *ANY)
def with_number(w: Writer, x: str) -> str:
    return _like(w, choice(w.source, WITH_NUMBERS), x)


@kind(12, *ANY)
def sum_of_maps(w: Writer, x: str) -> str:
    return _like(w, choice(w.source, SUMS), x, w.pick(w.alike(x)))


@kind(4, *ANY)
def product_of_maps(w: Writer, x: str) -> str:
    return _like(w, choice(w.source, PRODUCTS), x, w.pick(w.alike(x)))


@kind(3, *ANY)
def sum_with_product(w: Writer, x: str) -> str:
    texts = (
        "torch.addcmul({0}, {0}, {1}, value=0.5)",
        "{0}.addcmul({1}, {1})",
        "torch.lerp({0}, {1}, 0.3)",
        "{0}.lerp({1}, 0.7)",
        "torch.lerp({0}, {1}, {0}.sigmoid())",
    )
    return _like(w, choice(w.source, texts), x, w.pick(w.alike(x)))


@kind(2)
def likeness(w: Writer, x: str) -> str:
    """How near two maps are to each other, by channels, pixels or rows."""
    texts = (
        "F.cosine_similarity({0}, {1}, eps=0.1).unsqueeze(1)",
        "torch.cosine_similarity({0}, {1}, dim=2, eps=0.1)",
        "nn.CosineSimilarity(-1, 0.1)({0}, {1})",
        "F.pairwise_distance({0}, {1}, eps=0.5)",
        "nn.PairwiseDistance(keepdim=True)({0}, {1})",
        "torch.pairwise_distance({0}.mean((2, 3)), {1}.amax((2, 3)), keepdim=True)",
    )
    return w.line(choice(w.source, texts), x, w.line("torch.tanh({0})", x))


@kind(2, *ANY)
def with_itself(w: Writer, x: str) -> str:
    return _like(w, choice(w.source, (*SUMS[:1], *SUMS[3:4], *PRODUCTS)), x, x)


@kind(6, *ANY, changes=True)
def change_in_place(w: Writer, x: str) -> str:
    text = choice(w.source, IN_PLACE)
    operands = (x, w.pick(w.alike(x))) if "{1}" in text else (x,)
    w.change(text, *operands)
    return x


@kind(2)
def softmax(w: Writer, x: str) -> str:
    form = choice(w.source, ("F.softmax({0}, 1)", "torch.softmax({0}, dim=1)", "{0}.softmax(1)"))
    if chance(w.source, 40):
        name = choice(w.source, ("Softmax(1)", "LogSoftmax(1)", "Softmax2d()"))
        return w.layer("soft", f"nn.{name}", x)
    if chance(w.source, 40):
        form = form.replace("softmax", "log_softmax")
    return w.line(form, x)


@kind(2, "row")
def softmax_of_rows(w: Writer, x: str) -> str:
    texts = ("F.log_softmax({0}, 1)", "F.softmax({0}, -1)", "{0}.log_softmax(dim=1)")
    return w.line(choice(w.source, texts), x)


@kind(3)
def channel_parameter(w: Writer, x: str) -> str:
    """A sum or product with a parameter that has a value a channel."""
    c = w.shape(x)[1]
    shape = choice(w.source, ((c, 1, 1), (1, c, 1, 1)))
    return w.line(_with_parameter(w, shape), x)


@kind(2, "row", "last")
def feature_parameter(w: Writer, x: str) -> str:
    shape = choice(w.source, ((w.shape(x)[-1],), (1,) * (len(w.shape(x)) - 1) + (w.shape(x)[-1],)))
    return _like(w, _with_parameter(w, shape), x)


@kind(3, "map", "row")
def scalar_parameter(w: Writer, x: str) -> str:
    """A learnable scalar, such as ReZero's."""
    shape = choice(w.source, ((1,), (1, 1), (1, 1, 1, 1)[: len(w.shape(x))]))
    return w.line(_with_parameter(w, shape), x)


@kind(1, "map", "row")
def scalar_parameter_of_no_dimension(w: Writer, x: str) -> str:
    return w.line(_with_parameter(w, ()), x)


@kind(4)
def gate(w: Writer, x: str) -> str:
    """A product or sum of a map and one value a channel."""
    n, c, *_ = w.shape(x)
    gates = [name for name in w.named("map") if w.shape(name) == (n, c, 1, 1) and name != x]
    if not gates:
        made = w.line("{0}.mean((2, 3), keepdim=True)", x)
        gates = [w.line("torch.sigmoid({0})", made)]
    texts = ("{0} * {1}", "{1} * {0}", "{0} + {1}", "torch.mul({0}, {1})")
    return w.line(choice(w.source, texts), x, w.pick(gates))


def _with_parameter(w: Writer, shape: tuple[int, ...]) -> str:
    init = choice(w.source, (f"torch.randn({shape})", f"torch.full({shape}, 0.5)"))
    param = w.member("p", f"nn.Parameter({init})")
    texts = ("{0} * %s", "%s * {0}", "{0} + %s", "%s + {0}", "torch.mul({0}, %s)", "{0}.add(%s)")
    return choice(w.source, texts) % param


def _like(w: Writer, text: str, x: str, *others: str) -> str:
    """A statement whose result has the order of dimensions of `x`."""
    if not w.shape(x):
        raise RejectedError("no dimensions")
    return w.line(text, x, *others, permuted=w.kind(x) == "last")
