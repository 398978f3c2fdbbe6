"""Sums, means, norms, extremes and softmax over any dimensions but the batch."""

from bench.generated.kinds import kind
from bench.generated.layers import param
from bench.generated.source import chance, choice
from bench.generated.writer import RejectedError, Writer

DIMS = ("1", "(2, 3)", "2", "-1", "(1, 2, 3)", "(1, 3)", "3")
REDUCTIONS = (
    "{0}.sum(%s, keepdim=True)",
    "torch.sum({0}, dim=%s, keepdim=True)",
    "{0}.mean(%s, keepdim=True)",
    "torch.mean({0}, %s, True)",
    "{0}.amax(%s, keepdim=True)",
    "torch.amax({0}, dim=%s, keepdim=True)",
    "{0}.amin(%s, keepdim=True)",
    "{0}.var(%s, keepdim=True, unbiased=False)",
    "torch.var({0}, dim=%s, correction=0, keepdim=True)",
    "{0}.var(%s, keepdim=True)",
    "torch.std({0}, dim=%s, keepdim=True)",
    "({0} * 2).std(%s, keepdim=True, unbiased=False)",
    "torch.norm({0}, p=2, dim=%s, keepdim=True)",
    "{0}.norm(dim=%s, keepdim=True)",
    "torch.linalg.vector_norm({0}, dim=%s, keepdim=True)",
)


@kind(5)
def reduction(w: Writer, x: str) -> str:
    text = choice(w.source, REDUCTIONS) % choice(w.source, DIMS)
    return _finite_slope(w, x, text)


@kind(2)
def quotient_by_norms(w: Writer, x: str) -> str:
    texts = ("F.normalize({0}, dim=%s)", "F.normalize({0}, p=2, dim=%s, eps=0.1)")
    return _finite_slope(w, x, choice(w.source, texts) % choice(w.source, DIMS))


@kind(2)
def reduction_of_channels(w: Writer, x: str) -> str:
    """The mean and the largest of the channels, which spatial attention reads."""
    mean = w.line("{0}.mean(1, keepdim=True)", x)
    most = w.line(choice(w.source, ("{0}.amax(1, keepdim=True)", "{0}.max(1, keepdim=True)[0]")), x)
    return w.line("torch.cat([{0}, {1}], 1)", mean, most)


@kind(2)
def sum_of_pixels(w: Writer, x: str) -> str:
    texts = ("{0}.sum((2, 3))", "{0}.sum(dim=[2, 3])", "{0}.amax((2, 3))", "{0}.flatten(2).mean(2)")
    return w.line(choice(w.source, texts), x)


@kind(2)
def reduction_of_rows(w: Writer, x: str) -> str:
    if w.kind(x) != "map":
        raise RejectedError("a row")
    texts = ("{0}.mean(2).mean(2)", "{0}.sum(3).mean(-1)", "{0}.mean(3).amax(2)")
    return w.line(choice(w.source, texts), x)


@kind(2, "map", "row")
def number_of_a_sample(w: Writer, x: str) -> str:
    dims = "(1, 2, 3)" if w.kind(x) == "map" else "1"
    texts = ("{0}.sum(%s)", "{0}.mean(%s)", "torch.amax({0}, %s)", "{0}.flatten(1).norm(dim=1)")
    texts += ("({0} * {0}).sum(dim=%s)", "{0}.flatten(1)[:, :1].squeeze(1)", "{0}.var(%s)")
    text = choice(w.source, texts)
    return _finite_slope(w, x, text % dims if "%s" in text else text)


@kind(6, "number")
def of_a_number(w: Writer, x: str) -> str:
    texts = ("torch.sigmoid({0})", "{0} * 2 - 1", "{0}.tanh()", "{0}.unsqueeze(1)", "{0}[:, None]")
    texts += ("{0}.view(-1, 1)", "{0} + {0}.relu()", "{0} / ({0}.abs() + 1)")
    texts += (f"{{0}} * {param(w, (1,), 1.0)}",) if chance(w.source, 20) else ()
    return w.line(choice(w.source, texts), x)


@kind(2)
def softmax_of_any_dimension(w: Writer, x: str) -> str:
    dim = choice(w.source, (2, 3, -1, 1, -2))
    text = choice(w.source, ("F.softmax({0}, %d)", "torch.log_softmax({0}, dim=%d)")) % dim
    return w.line(text, x)


@kind(2)
def softmax_of_pixels(w: Writer, x: str) -> str:
    n, c, height, width = w.shape(x)
    flat = w.line("{0}.flatten(2)", x)
    return w.line(f"F.softmax({{0}}, -1).view({n}, {c}, {height}, {width})", flat)


def _finite_slope(w: Writer, x: str, text: str) -> str:
    """Norms and deviations of one value have no slope where it is zero."""
    if ("norm" in text or "std" in text) and min(w.shape(x)[1:]) < 2 and not chance(w.source, 5):
        raise RejectedError("the root of zero")
    return w.line(text, x)
