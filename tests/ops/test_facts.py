"""Facts: what the values that passes leave have in common, on networks drawn at random."""

import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.networks.sign_bits import residual
from tests.support.examples import CHAIN, examples
from tests.support.lowered import lower
from tests.support.networks import random_chain
from tests.support.running import random_batches, train
from tests.support.simulated import h200
from tvdnn.engine import training_graph
from tvdnn.graph import Direction, Fact, Graph, Kind
from tvdnn.kernels.language.rounding import KEPT, NAN
from tvdnn.optim import SGD
from tvdnn.planner.ir.schedule import Action, Operand, Step
from tvdnn.planner.policies.keep import keep
from tvdnn.runtime import binding
from tvdnn.runtime.binding import Call
from tvdnn.runtime.views import ByteViews

BOTH = frozenset({Fact.NOT_NEGATIVE, Fact.TF32})


def holds(fact: Fact, values: Tensor) -> bool:
    """True if all values are as a fact says."""
    if fact is Fact.NOT_NEGATIVE:
        return not bool((values.signbit() & ~values.isnan()).any())
    bits = values.view(torch.int32)
    is_nan = values.isnan()
    return bool((bits & ~KEPT.value == 0).all() and (bits[is_nan] == NAN.value).all())


class Watched:
    """Checks what steps write and read against the facts of passes and buffers."""

    def __init__(self, graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
        self.graph, self.checked = graph, 0
        self._final = {name: _written_forward(graph, name) for name in graph.buffers}
        bind_step = binding.bind_step
        monkeypatch.setattr(
            binding,
            "bind_step",
            lambda graph, step, memory, *rest, **options: self._watched(
                step, memory, bind_step(graph, step, memory, *rest, **options)
            ),
        )

    def _watched(self, step: Step, memory: ByteViews, call: Call) -> Call:
        assert step.action is Action.LAUNCH
        pass_ = self.graph.passes[step.pass_index]

        def run() -> None:
            for use, operand in zip(pass_.reads, step.reads, strict=True):
                if step.pass_index in self._final[use.buffer]:
                    self._check(self.graph.buffers[use.buffer].facts, operand, None, memory)
            call()
            for use, operand, facts in zip(pass_.writes, step.writes, pass_.facts, strict=False):
                self._check(facts, operand, use.channels, memory)

        return run

    def _check(
        self,
        facts: frozenset[Fact],
        operand: Operand,
        channels: tuple[int, int] | None,
        memory: ByteViews,
    ) -> None:
        values = memory.view(operand, self.graph.buffers[operand.buffer])
        values = values[..., slice(*channels)] if channels else values
        for fact in facts:
            assert holds(fact, values.contiguous()), (operand, fact)
            self.checked += 1


def _written_forward(graph: Graph, name: str) -> range:
    """The passes that read the values that forward leaves in a buffer."""
    writers = {
        direction: [
            index
            for index, pass_ in enumerate(graph.passes)
            if name in pass_.written_buffers and pass_.direction is direction
        ]
        for direction in Direction
    }
    first = max(writers[Direction.FORWARD], default=len(graph.passes))
    end = min(writers[Direction.BACKWARD], default=len(graph.passes) - 1)
    return range(first + 1, end + 1)


def odd_batches(shape: Sequence[int], seed: int) -> list[tuple[Tensor, Tensor]]:
    """A batch with zeros of both signs, both infinities and NaN of both signs."""
    ((x, y),) = random_batches(1, tuple(shape), 4, seed)
    x.view(-1)[:6] = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, -torch.nan])
    return [(x, y)]


def watched(
    net: nn.Module, shape: Sequence[int], seed: int, *, odd: bool, **how: object
) -> tuple[Graph, int]:
    """The graph of a step that was run and watched, and how often a fact was checked."""
    batches = odd_batches(shape, seed) if odd else random_batches(1, tuple(shape), 4, seed)
    optimizer = SGD(momentum=0.9)
    graph = training_graph(net, batches[0][0], optimizer=optimizer, **how)
    with pytest.MonkeyPatch.context() as patch:
        watch = Watched(graph, patch)
        train(net, lower(graph, keep(graph), h200(graph)), batches)
    return graph, watch.checked


@examples(40, **CHAIN, kind=st.sampled_from(("tf32", "fp32", "bf16")), fuse=st.booleans())
def test_values_are_as_their_facts_say(
    seed: int, batch: int, image: int, channels: int, chunk_size: int, kind: str, fuse: bool
) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    net = random_chain(rng, channels, image, 4, forks=rng.random() < 0.5)
    how = {"dtype": kind, "chunk_size": chunk_size, "fuse": fuse}
    watched(net, (batch, channels, image, image), seed, odd=rng.random() < 0.5, **how)


def rectified() -> nn.Sequential:
    """Convolutions, each with a ReLU, one in place; a pooling, a normalization and products."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 16),
        nn.ReLU(),
        nn.Linear(16, 4),
    )


@pytest.mark.parametrize("fuse", [False, True])
@pytest.mark.parametrize("odd", [False, True])
def test_products_behind_a_relu_read_rounded_values_without_a_sign(fuse: bool, odd: bool) -> None:
    """A NaN that is pooled may get other bits."""
    how = {"dtype": "tf32", "chunk_size": 4096, "fuse": fuse}
    graph, checked = watched(rectified(), (5, 3, 8, 8), 0, odd=odd, **how)
    assert checked > 20
    read = {
        use.buffer
        for pass_ in graph.passes
        for use in pass_.reads
        if pass_.role == "forward" and graph.ops[pass_.op].kind.startswith(("conv", "linear"))
    }
    maps = [graph.buffers[name] for name in read if graph.buffers[name].kind is Kind.MAP]
    pooled = [each for each in maps if each.facts == {Fact.NOT_NEGATIVE}]
    assert len(maps) == 4
    assert len(pooled) == (1 if fuse else 2)  # by overlapping windows, and by those of no fused op
    assert all(each.facts == BOTH for each in maps if each not in pooled)


def test_maps_that_no_product_reads_are_not_rounded() -> None:
    graph, _ = watched(residual(), (5, 3, 4, 4), 0, odd=False, dtype="fp32", fuse=True)
    facts = {each.facts for each in graph.buffers.values()}
    assert facts == {frozenset(), frozenset({Fact.NOT_NEGATIVE})}
