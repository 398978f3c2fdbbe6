"""The profiler's launches: every pass of every kind of step runs on its stand-ins."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.networks import NetworkMaker
from tvdnn.graph import Graph, Network
from tvdnn.kernels.rounding import stored_reference
from tvdnn.ops import Settings, expand
from tvdnn.ops.expand import Mode
from tvdnn.optim import SGD, AdamW, Optimizer
from tvdnn.planner.schedule import Step
from tvdnn.runtime import profiler
from tvdnn.runtime.binding import Call, Memory
from tvdnn.runtime.profiler import Scratch, compile_together
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


def test_products_are_measured_on_what_tf32_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = expand(network(), Settings("tf32", 16 * KIB, optimizer=SGD()))
    scratch = Scratch(graph, torch.device("cpu"), "torch", 64 * MIB)
    index = next(i for i, pass_ in enumerate(graph.passes) if pass_.role == "grad_weight")
    read = list[torch.Tensor]()
    bind = profiler.bind_step

    def spied(graph: Graph, step: Step, memory: Memory, *others: Any, **options: Any) -> Call:
        read.extend(memory.view(operand, graph.buffers[operand.buffer]) for operand in step.reads)
        return bind(graph, step, memory, *others, **options)

    monkeypatch.setattr(profiler, "bind_step", spied)
    scratch.call(index, graph.passes[index].domain)
    assert len(read) == 2
    for values in read:
        assert torch.equal(values, stored_reference(values, values.dtype, "tf32"))
        assert values.count_nonzero() == values.numel()


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
