"""Every launch of training steps, with all the shapes and epilogues that networks ask for."""

from collections.abc import Iterator
from functools import partial

import torch

from bench.offline.compiler import Case
from tvdnn import models
from tvdnn.engine import training_graph
from tvdnn.graph import Graph, Param, Pass
from tvdnn.ops.operator import TORCH_DTYPES, Control
from tvdnn.optim import SGD
from tvdnn.planner.ir.schedule import Action, Lane, Operand, Space, Step
from tvdnn.runtime.binding import Tensors, bind_step
from tvdnn.runtime.kernel_set import kernel_set
from tvdnn.runtime.profiler import signature
from tvdnn.runtime.views import ByteViews

BATCH = 64
SCRATCH_NBYTES = 1 << 36  # of the meta device, which holds nothing


def step_graph(name: str, dtype: str, *, fuse: bool) -> Graph:
    """A training step of a model on the meta device."""
    with torch.device("meta"):
        net = models.by_name(name)
        x = torch.empty(BATCH, *models.image_shape(name))
    return training_graph(net, x, optimizer=SGD(momentum=0.9), dtype=dtype, fuse=fuse)


def launch(graph: Graph, index: int, kernels: str = "triton") -> None:
    """One launch of a pass over its whole domain, each buffer at an address of its own."""
    pass_ = graph.passes[index]
    operands: dict[str, Operand] = {}
    for use in (*pass_.reads, *pass_.writes):
        buffer = graph.buffers[use.buffer]
        rows = use.rows(0, pass_.domain, buffer)
        nbytes = (rows[1] - rows[0]) * buffer.row_nbytes
        operands[use.buffer] = Operand(use.buffer, *rows, Space.ARENA, 0, nbytes)
    reads, writes = (
        tuple(operands[use.buffer] for use in uses) for uses in (pass_.reads, pass_.writes)
    )
    step = Step(Lane.COMPUTE, Action.LAUNCH, 0, index, 0, pass_.domain, reads, writes)
    scratch = torch.empty(SCRATCH_NBYTES, dtype=torch.uint8, device="meta")
    tensors, chosen = _tensors(graph, pass_), kernel_set(kernels)
    bind_step(graph, step, ByteViews(scratch, scratch), tensors, chosen, by_unit=False)()


def _tensors(graph: Graph, pass_: Pass) -> Tensors:
    params = {
        name: _empty(graph.network.params[name]) for name in (*pass_.params, *pass_.updates) if name
    }
    updates = {name: (params[name], torch.empty_like(params[name])) for name in pass_.updates}
    floats, seed = torch.empty(8, device="meta"), torch.empty(1, dtype=torch.int64, device="meta")
    return Tensors(params, updates, Control(floats, floats[:1], seed))


def _empty(param: Param) -> torch.Tensor:
    return torch.empty(param.shape, dtype=TORCH_DTYPES[param.dtype], device="meta")


def cases(name: str, dtype: str, *, fuse: bool) -> Iterator[Case]:
    """A case for every distinct pass of a step, for Hopper."""
    graph = step_graph(name, dtype, fuse=fuse)
    distinct = {signature(graph, pass_): index for index, pass_ in enumerate(graph.passes)}
    for index in distinct.values():
        title = f"{name} {dtype} {graph.passes[index].name}"
        yield Case(title, partial(launch, graph, index))


CASES = [
    *cases("vgg16", "bf16", fuse=True),
    *cases("alexnet", "tf32", fuse=False),
]
