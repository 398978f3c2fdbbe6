"""Inputs of steps: the caller's rows, written where passes read them."""

from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace

import torch

from ..errors import InputError
from ..graph import Value
from ..ops.expand import DTYPES
from ..ops.loss import label_ranges
from ..ops.operator import Control
from ..planner.ir.schedule import Schedule
from .binding import input_places, place_view
from .caller_rows import by_sample, channels_first, usual_form
from .views import ByteViews


class InputRows:
    """The rows of a schedule's inputs before their phases."""

    def __init__(self, schedule: Schedule, kernels: SimpleNamespace, control: Control) -> None:
        self._graph, self._kernels, self._control = schedule.graph, kernels, control
        self._precision = DTYPES[schedule.graph.dtype][1]
        self._places = input_places(schedule)
        self._label_ranges = label_ranges(schedule.graph.network)

    def views(self, memory: ByteViews, name: str) -> list[torch.Tensor]:
        """The rows of an input in the arena."""
        buffer = self._graph.buffers[name]
        return [place_view(memory, buffer, place) for place in self._places[name]]

    def fill(self, memory: ByteViews, name: str, value: torch.Tensor, *, first: int = 0) -> None:
        """Write the caller's rows of an input, with cast and change of layout.

        Maps come as torch has them: [N, C, H, W], unless the network permutes them. Labels are
        checked on the device; the number of a wrong sample counts from `first`. Raises InputError
        for another number of samples.
        """
        graph = self._graph
        buffer = graph.buffers[name]
        if value.shape[0] * graph.row_tiles != buffer.rows:
            raise InputError(
                f"{name} has {value.shape[0]} samples, the plan {buffer.rows // graph.row_tiles}; "
                "plan for this batch size"
            )
        if buffer.dtype != "int64":
            value = channels_first(value, self._value_of(name))
        rows_axis = 1 if buffer.dtype == "int64" else 2
        for place, held in zip(self._places[name], self.views(memory, name), strict=True):
            for sample, source, target in by_sample(value, held, place, graph.row_tiles, rows_axis):
                if buffer.dtype == "int64":
                    self.check_labels(source, target, first=first + sample)
                else:
                    flat = source.dim() == 2  # a view may have flattened maps of one pixel
                    target = target.flatten(1) if flat else target
                    precision = self._precision if name in graph.rounded_inputs else "ieee"
                    self._kernels.stage(source, target, precision=precision)

    def check_labels(
        self, labels: torch.Tensor, target: torch.Tensor | None = None, *, first: int = 0
    ) -> None:
        """Check labels on the device, and copy them to `target` if it is given."""
        assert self._control.faults is not None
        words = self._control.flag, self._control.faults.step, self._control.faults.record
        for classes, ignore_index in self._label_ranges:
            settings = {"classes": classes, "ignore_index": ignore_index, "first": first}
            self._kernels.stage_labels(labels, target, *words, **settings)

    def usual_fills(self, memory: ByteViews) -> Iterator[Callable[[], object]]:
        """Calls that fill the inputs from tensors of the usual form, to compile their kernels."""
        for name in self._places:
            if self._graph.buffers[name].dtype != "int64":
                yield partial(self.fill, memory, name, usual_form(self._value_of(name)))
            elif self._graph.row_tiles == 1:
                held = self.views(memory, name)[0]
                yield partial(self.check_labels, torch.empty_like(held, device="meta"), held)

    def _value_of(self, name: str) -> Value:
        """The network's value that an input holds, or whose gradient it is."""
        return self._graph.network.values[self._graph.inputs[name].removeprefix("grad ")]
