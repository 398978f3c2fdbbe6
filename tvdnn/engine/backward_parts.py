"""Parts of a step's backward half, each of which completes gradients of some parameters.

DistributedDataParallel reduces gradients bucket by bucket while others are still being computed (Li
et al., "PyTorch Distributed", VLDB 2020). A backward half that hands all over at its end leaves
nothing to compute meanwhile.
"""

from collections.abc import Iterator
from typing import NamedTuple

from torch import nn

from ..planner.ir.schedule import Schedule


class BackwardPart(NamedTuple):
    """Steps of a schedule from `start` to the next part.

    `names` are the parameters whose gradients are whole behind them. Of the last part they are not
    told.
    """

    start: int
    names: tuple[str, ...]


def bucket_nbytes() -> int | None:
    """The bytes of a bucket of the DistributedDataParallel whose forward runs; None outside one."""
    wrapper = nn.parallel.DistributedDataParallel._active_ddp_module
    return None if wrapper is None else wrapper.bucket_bytes_cap


def one_part(schedule: Schedule) -> tuple[BackwardPart, ...]:
    """The whole second half."""
    return (BackwardPart(schedule.phase_split, ()),)


def backward_parts(schedule: Schedule, nbytes: int) -> Iterator[BackwardPart]:
    """The parts of the second half, of which all but the last complete at least so many bytes."""
    graph, start, waiting, names = schedule.graph, schedule.phase_split, 0, list[str]()
    completed = sorted(_completed_after(schedule).items(), key=lambda item: item[1])
    for number, (name, step) in enumerate(completed):
        names.append(name)
        waiting += graph.buffers[graph.param_grads[name][0]].nbytes
        is_last = number + 1 == len(completed)
        if waiting >= nbytes and not is_last and completed[number + 1][1] > step:
            yield BackwardPart(start, tuple(names))
            start, waiting, names = step + 1, 0, []
    yield BackwardPart(start, ())


def _completed_after(schedule: Schedule) -> dict[str, int]:
    """By parameter, the last step that writes its gradient, or reads the parameter itself.

    A hook may update the parameter as soon as it has the gradient.
    """
    wholes = {grads[0]: name for name, grads in schedule.graph.param_grads.items()}
    last = dict.fromkeys(wholes.values(), schedule.phase_split)
    for index in range(schedule.phase_split, len(schedule.steps)):
        step = schedule.steps[index]
        read = schedule.graph.passes[step.pass_index].params if step.pass_index >= 0 else ()
        written = (wholes[each.buffer] for each in step.writes if each.buffer in wholes)
        last.update(dict.fromkeys((*written, *(name for name in read if name in last)), index))
    return last
