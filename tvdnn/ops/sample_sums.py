"""Gradients of parameters that add up from sums which a pass leaves of every sample."""

from ..graph import Op, Use
from ..kernels.reduce.per_sample import GROUP, sample_splits
from .builder import Builder, whole
from .operator import Launch


def add_param_grads(b: Builder, op: Op, sums: str) -> None:
    """Running sums of the gradients that are wanted; kind i of `sums` is the i-th parameter's."""
    _, chunks, _, columns = b.buffers[sums].shape
    shape = (sample_splits(chunks), columns)
    for kind, (param, name) in enumerate(zip(op.params, ("weight", "bias"), strict=False)):
        if b.needs_param_grad(param):
            running = whole(b.add_partials(op, param, shape))
            b.add_pass(
                op, f"grad_{name}", (Use(sums),), (running,), unit=GROUP, reduction=True,
                attrs={"sum": kind},
            )  # fmt: skip


def run_param_grad(a: Launch) -> None:
    a.kernels.add_sample_sums(a.reads[0], a.writes[0], kind=a.attrs["sum"], first=a.start == 0)
