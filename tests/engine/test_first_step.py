"""The seconds of a first step by part: what they sum to, and which parts a step reports."""

import pickle
import subprocess
import sys
from itertools import count

import pytest
import torch
from torch import nn

from tvdnn import Trainer, virtualize
from tvdnn.engine.first_step import FirstStep

SHAPE = (4, 3, 8, 8)


def small_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))


def test_every_second_belongs_to_one_part() -> None:
    """The clock moves by one second at each look: once when made, then once a report."""
    told: list[tuple[str, float]] = []
    ticks = count()
    step = FirstStep(lambda *each: told.append(each), lambda: float(next(ticks)))
    step("tracing", 0.0)
    step("tracing", 1.0)
    step("profiling", 0.0)
    step("compiling", 0.0)  # within profiling
    step("compiling", 0.5)
    step("compiling", 1.0)
    step("profiling", 0.5)
    waited: list[int] = []
    step.end(lambda: waited.append(next(ticks)))
    expected = {"other": 3.0, "tracing": 1.0, "profiling": 3.0, "compiling": 2.0}
    assert dict(step.seconds) == expected
    step("capturing", 0.0)
    step.end(lambda: waited.append(next(ticks)))
    assert dict(step.seconds) == expected
    assert len(waited) == 1
    assert len(told) == 8


def test_a_trainer_tells_the_parts_of_its_first_step() -> None:
    told: list[str] = []
    net = small_net()
    x, y = torch.randn(SHAPE), torch.zeros(4, dtype=torch.long)
    trainer = Trainer(net, x, progress=lambda stage, _: told.append(stage))
    assert "running" not in trainer.first_step
    trainer.step(x, y)
    found = dict(trainer.first_step)
    assert list(found) == ["other", "tracing", "planning", "allocating", "running"]
    trainer.step(x, y)
    assert dict(trainer.first_step) == found
    assert list(dict.fromkeys(told)) == ["tracing", "planning", "allocating", "running"]
    assert told.count("running") == 1
    trainer.close()


def test_a_virtualized_network_does_too_and_its_copy_counts_anew() -> None:
    net = virtualize(small_net(), torch.randn(SHAPE))
    net(torch.randn(SHAPE)).sum().backward()
    assert list(net.first_step) == ["other", "tracing", "planning", "allocating", "running"]
    other = pickle.loads(pickle.dumps(net))
    assert list(other.first_step) == []
    other(torch.randn(SHAPE)).sum().backward()
    assert list(other.first_step) == list(net.first_step)


@pytest.mark.gpu
def test_the_making_of_a_trainer_compiles_all_that_its_first_step_launches() -> None:
    script = """
import torch, tvdnn
from triton import knobs
net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(288, 2))
x, y = torch.randn(4, 3, 8, 8, device="cuda"), torch.zeros(4, dtype=torch.int64, device="cuda")
trainer = tvdnn.Trainer(net.cuda(), x)
compiled = []
knobs.runtime.jit_cache_hook = lambda **about: compiled.append(about["fn"].name)
trainer.step(x, y)
assert not compiled, compiled
"""
    subprocess.run([sys.executable, "-c", script], check=True)
