"""Graphs in which a pass reads another buffer, which the proof of a graph's values must refuse."""

from dataclasses import replace

import pytest

from tvdnn.errors import ScheduleError
from tvdnn.graph import Graph, Use
from tvdnn.planner.verify.graph_values import check_provenance


def assert_refuses_others(graph: Graph, place: int, use: Use) -> None:
    """No other use of a buffer of the same kind may stand for `use` in the pass at `place`."""
    pass_, kind = graph.passes[place], graph.buffers[use.buffer].kind
    own = {read.buffer for read in pass_.reads}
    others = {
        each
        for other in graph.passes
        for each in other.reads
        if graph.buffers[each.buffer].kind is kind
        if each.buffer not in own
    }
    for other in others:
        reads = tuple(other if each is use else each for each in pass_.reads)
        passes = list(graph.passes)
        passes[place] = replace(pass_, reads=reads)
        with pytest.raises(ScheduleError):
            check_provenance(replace(graph, passes=tuple(passes)))
