"""Requested and tuned settings, and the schedules that they make."""

import pytest
import torch

from tests.support.simulated import h200
from tests.support.tuning import BATCH, SHAPE, make_net
from tvdnn.engine import Trainer
from tvdnn.errors import InputError
from tvdnn.experiment.request import make_graph, make_request
from tvdnn.graph import ChunkSizes, size_class
from tvdnn.planner.ir.schedule import Lane
from tvdnn.planner.ir.settings import Choice, Requested, Tuned, choose
from tvdnn.planner.make import make_schedule
from tvdnn.units import KIB


def test_maps_of_a_class_have_sections_of_its_size() -> None:
    chunks = ChunkSizes(16 * KIB, ((13, 4 * KIB), (11, 64 * KIB)))
    assert [size_class(nbytes) for nbytes in (1, 2, 4096, 4097, 8192)] == [0, 1, 12, 13, 13]
    assert [chunks.of(nbytes) for nbytes in (8192, 4096, 2048)] == [4 * KIB, 16 * KIB, 64 * KIB]
    plain, sized = (
        Trainer(make_net(), torch.empty(BATCH, *SHAPE), chunk_size=each).graph.buffers
        for each in (16 * KIB, chunks)
    )
    of_class = [name for name in plain if size_class(plain[name].row_nbytes) == 13]
    assert {(plain[name].section, sized[name].section) for name in of_class} == {(2, 1)}


@pytest.mark.parametrize("lead", [0, 2])
def test_a_lead_bounds_how_early_prefetches_come(lead: int) -> None:
    request = make_request("lenet5", 16, None, "fp32", "4KiB", None)
    graph = make_graph(request, "vdnn-all", lambda *_: None)
    led = make_schedule(graph, h200(graph), policy="vdnn-all", lead=lead)
    moves = led.plan.transfers
    assert moves
    assert all(move.needed_by - move.earliest_prefetch <= lead for move in moves)
    opens = {move.buffer: move.earliest_prefetch for move in moves}
    launches = [index for index, step in enumerate(led.steps) if step.lane is Lane.COMPUTE]
    for index, step in enumerate(led.steps):
        if step.lane is Lane.PREFETCH:
            first = next(i for i in launches if led.steps[i].slot == opens[step.reads[0].buffer])
            before = [i for i in launches if i < first]
            assert index > before[-1]
    with pytest.raises(InputError, match="lead is -1"):
        make_schedule(graph, h200(graph), policy="vdnn-all", lead=-1)


def test_choices_are_what_was_asked_then_what_was_found() -> None:
    tuned = Tuned(choices={"5": Choice("tvdnn-ilp", 2, "kernel")})
    assert choose(None, 5, Requested()) == Choice("auto", None, "engine")
    assert choose(tuned, 5, Requested()) == Choice("tvdnn-ilp", 2, "kernel")
    assert choose(tuned, 6, Requested()) == Choice()
    assert choose(tuned, 5, Requested("tvdnn-ilp", 4)) == Choice("tvdnn-ilp", 4, "kernel")
    assert choose(tuned, 5, Requested("keep")) == Choice("keep")
    assert choose(tuned, 5, Requested(copies="engine")) == Choice("tvdnn-ilp", 2, "engine")
