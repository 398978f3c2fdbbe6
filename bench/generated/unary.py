"""Elementwise functions of one map beyond the activations of pointwise.py."""

from bench.generated.kinds import kind
from bench.generated.pointwise import ANY
from bench.generated.source import chance, choice
from bench.generated.writer import RejectedError, Writer

LAYERS = (
    "PReLU()",
    "PReLU(CHANNELS)",
    "PReLU(init=0.0)",
    "Mish()",
    "Softplus()",
    "Softplus(beta=2, threshold=1)",
    "CELU()",
    "CELU(0.5, inplace=True)",
    "SELU()",
    "SELU(inplace=True)",
    "LogSigmoid()",
    "Softsign()",
    "Hardtanh()",
    "Hardtanh(-0.5, 2.0, inplace=True)",
    "Threshold(0.1, -0.5)",
)
CALLS = (
    "F.mish({0})",
    "F.softplus({0})",
    "F.softplus({0}, beta=3.0)",
    "F.celu({0}, alpha=0.7)",
    "torch.selu({0})",
    "F.logsigmoid({0})",
    "F.softsign({0})",
    "F.hardtanh({0})",
    "F.threshold({0}, 0.0, 0.2)",
    "torch.clamp({0}, -0.5, 0.5)",
    "{0}.clamp(min=0)",
    "{0}.clip(max=1.0)",
    "torch.clamp({0}, min=-1.0)",
    "{0}.clamp_min(0.1)",
    "torch.abs({0})",
    "{0}.abs()",
    "torch.exp({0}.tanh())",
    "torch.log({0}.abs() + 0.5)",
    "torch.sqrt({0}.square() + 1)",
    "torch.rsqrt({0} ** 2 + 0.5)",
    "{0}.square()",
    "{0} ** 2",
    "{0}.pow(3)",
    "torch.pow({0}.abs() + 0.1, 1.7)",
    "({0} ** 2 + 1).reciprocal()",
    "torch.reciprocal({0}.abs() + 1)",
    "({0} ** 2 + 1) ** -0.5",
    "2 ** {0}.tanh()",
    "torch.pow(0.5, {0}.tanh())",
    "torch.rsub({0}, 1)",
    "torch.rsub({0}, {0}.square(), alpha=0.5)",
)
RESULTS_IN_PLACE = (
    "{0}.clamp_(-0.5, 0.5)",
    "{0}.clamp_(min=0)",
    "torch.clamp_({0}, max=1.0)",
    "{0}.abs_()",
    "{0}.exp_()",
    "F.celu_({0})",
    "F.selu({0}, inplace=True)",
    "F.hardtanh({0}, inplace=True)",
    "F.threshold_({0}, 0.1, 0.2)",
    "F.mish({0}, inplace=True)",
    "{0}.square_()",
    "{0}.pow_(2)",
)


@kind(7, *ANY)
def elementwise_layer(w: Writer, x: str) -> str:
    text = choice(w.source, LAYERS)
    if "CHANNELS" in text:
        if w.kind(x) == "last":
            raise RejectedError("PReLU takes the second dimension for channels")
        text = text.replace("CHANNELS", str(w.shape(x)[1]))
    return w.layer("act", f"nn.{text}", x, permuted=w.kind(x) == "last")


@kind(7, *ANY)
def elementwise_call(w: Writer, x: str) -> str:
    return w.line(choice(w.source, CALLS), x, permuted=w.kind(x) == "last")


@kind(3, *ANY, changes=True)
def elementwise_in_place(w: Writer, x: str) -> str:
    return w.line(choice(w.source, RESULTS_IN_PLACE), x, permuted=w.kind(x) == "last")


@kind(2, "map", "row")
def functional_prelu(w: Writer, x: str) -> str:
    size = choice(w.source, (1, w.shape(x)[1]))
    return w.line(
        f"F.prelu({{0}}, {w.member('p', f'nn.Parameter(torch.full(({size},), 0.2))')})", x
    )


@kind(2, "map", "row")
def gated_linear_unit(w: Writer, x: str) -> str:
    if w.shape(x)[1] % 2:
        raise RejectedError("an odd number of channels")
    if chance(w.source, 40):
        return w.layer("glu", "nn.GLU(1)", x)
    return w.line(choice(w.source, ("F.glu({0}, 1)", "F.glu({0}, dim=1)")), x)
