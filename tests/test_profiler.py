"""The profiler's launches: every pass of every kind of step runs on its stand-ins."""

from dataclasses import replace

import pytest
import torch

from tests.networks import NetworkMaker
from tvdnn.graph import Network
from tvdnn.ops import Settings, expand
from tvdnn.ops.expand import Mode
from tvdnn.optim import SGD, AdamW, Optimizer
from tvdnn.runtime.binding import Call
from tvdnn.runtime.profiler import HEAVIEST, Scratch, compile_together
from tvdnn.units import KIB, MIB

OPTIMIZERS = (SGD(), SGD(momentum=0.9), AdamW())


def network() -> Network:
    """Two convolutions, of which pooling follows one, and two linear layers with dropout."""
    maker = NetworkMaker((4, 16, 16, 4))
    maker.conv(8)
    maker.relu()
    maker.max_pool()
    maker.conv(8)
    maker.relu()
    maker.flatten()
    maker.linear(16)
    maker.relu()
    maker.dropout()
    maker.linear(4)
    return maker.build()


@pytest.mark.parametrize("fuse", [True, False], ids=["fused", "plain"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=["sgd", "momentum", "adamw"])
@pytest.mark.parametrize("mode", Mode)
def test_every_pass_runs_on_stand_ins(mode: Mode, optimizer: Optimizer, fuse: bool) -> None:
    settings = Settings("fp32", 16 * KIB, mode=mode, optimizer=optimizer, fuse=fuse)
    traced = network()
    if mode is Mode.INFER:
        traced = replace(traced, training=False)
    graph = expand(traced, settings)
    scratch = Scratch(graph, torch.device("cpu"), "torch", 64 * MIB)
    for index, pass_ in enumerate(graph.passes):
        counts = scratch.row_counts(pass_)
        assert counts, pass_.name
        assert all(0 < rows <= pass_.domain for rows in counts), pass_.name
        for rows in counts:
            scratch.call(index, rows)()


def test_passes_compile_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is launched once, but for those that are too large for a share of the bytes."""
    graph = expand(network(), Settings("fp32", 16 * KIB, optimizer=SGD()))
    launched = list[int]()
    call = Scratch.call

    def counted(self: Scratch, index: int, rows: int) -> Call:
        launched.append(index)
        return call(self, index, rows)

    monkeypatch.setattr(Scratch, "call", counted)
    every = range(len(graph.passes))
    compile_together(graph, every, torch.device("cpu"), "torch", 64 * MIB)
    assert sorted(launched) == list(every)
    launched.clear()
    compile_together(graph, every, torch.device("cpu"), "torch", 64 * KIB)
    assert 0 < len(launched) < len(every)


def test_the_heaviest_passes_run_together_where_they_fit() -> None:
    graph = expand(network(), Settings("fp32", 16 * KIB, optimizer=SGD()))
    passes = [(index, 1, 0.5) for index in reversed(range(len(graph.passes)))]
    scratch = Scratch(graph, torch.device("cpu"), "torch", 64 * MIB)
    launches, seconds = scratch.heaviest(passes)
    assert len(launches) == HEAVIEST
    assert seconds == HEAVIEST / 2
    for launch in launches:
        launch()
    assert Scratch(graph, torch.device("cpu"), "torch", 0).heaviest(passes) == ([], 0)


def test_heavy_passes_that_read_whole_numbers_are_left_out() -> None:
    """On scratch bytes they would say to read anywhere."""
    graph = expand(network(), Settings("fp32", 16 * KIB, optimizer=SGD(), fuse=True))
    scratch = Scratch(graph, torch.device("cpu"), "torch", 64 * MIB)
    dtypes = [
        {graph.buffers[use.buffer].dtype for use in (*pass_.reads, *pass_.writes)}
        for pass_ in graph.passes
    ]
    assert {"int64", "uint8"} <= set().union(*dtypes)
    for index, found in enumerate(dtypes):
        launches, _ = scratch.heaviest([(index, 1, 1.0)])
        assert len(launches) == (found <= {"float32"})
