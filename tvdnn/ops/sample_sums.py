"""Gradients of parameters that add up from sums of every sample."""

from collections.abc import Callable, Mapping, Sequence
from math import prod

from torch import Tensor

from ..graph import Kind, Op, Use
from ..kernels.reduce.per_sample import GROUP, sample_splits
from .builder import Builder, whole
from .operator import Launch
from .optimizer import run_fused_update
from .passes import channels_of


def add_sums(
    b: Builder, op: Op, chunks: Callable[[int, int], int], *kinds: int, columns: int = 0
) -> str:
    """A buffer for sums of every sample, in sections as long as the gradient's.

    `chunks` says how many there are of maps with so many pixels and channels. Each chunk has
    `kinds` rows, of the channels or as many `columns`.
    """
    _, *sides, channels = b.shape(op.output)
    shape = (b.batch, chunks(prod(sides), channels), *kinds, columns or channels)
    section = b.buffers[b.grad_of(op)].section
    return b.add_map(f"sums {op.name}", shape, Kind.AUX, "float32", section)


def add_grad_input(
    b: Builder, op: Op, sums: str, reads: Sequence[Use], params: tuple[str, ...] = (),
    grad: Callable[[Builder, Op], str] = Builder.next_grad,
) -> None:  # fmt: skip
    """The pass that makes `sums`, unless they are "", and the input's gradient if it is wanted.

    `grad` gives that gradient its buffer.
    """
    writes = [Use(sums)] if sums else []
    if b.needs_grad(op.inputs[0]):
        writes.append(Use(grad(b, op)))
    attrs = channels_of(b, op) | {"leaves_sums": bool(sums)}
    b.add_pass(op, "grad_input", reads, writes, params=params, attrs=attrs)


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


def grad_and_sums(a: Launch) -> tuple[Tensor | None, Tensor | None]:
    """What a pass of `add_grad_input` writes; None of what it does not make."""
    written = list(a.writes)
    sums = written.pop(0) if a.attrs["leaves_sums"] else None
    return (a.by_pixel(written[0]) if written else None), sums


def run_param_grad(a: Launch) -> None:
    a.kernels.add_sample_sums(a.reads[0], a.writes[0], kind=a.attrs["sum"], first=a.start == 0)


SAMPLE_SUMS: Mapping[str, Callable[[Launch], None]] = {
    "grad_weight": run_param_grad,
    "grad_bias": run_param_grad,
    "update": run_fused_update,
}
