"""Gradients of parameters that add up from sums of every sample."""

from collections.abc import Callable, Mapping

from ..graph import Kind, Op, Use
from ..kernels.reduce.per_sample import GROUP, sample_splits
from .builder import Builder, whole
from .operator import Launch
from .optimizer import run_fused_update


def add_sums(b: Builder, op: Op, *shape: int) -> str:
    """A buffer for sums of this shape of every sample, in sections as long as the gradient's."""
    section = b.buffers[b.grad_of(op)].section
    return b.add_map(f"sums {op.name}", (b.batch, *shape), Kind.AUX, "float32", section)


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


SAMPLE_SUMS: Mapping[str, Callable[[Launch], None]] = {
    "grad_weight": run_param_grad,
    "grad_bias": run_param_grad,
    "update": run_fused_update,
}
