"""Processes that train together on GPUs: by NCCL inside CUDA graphs, and by gloo beside them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

from bench.offline.compiler import ROOT
from tests.distributed.data_parallel_cases import SHAPE, Net, batches, trained
from tests.distributed.gpu_cases import STEPS
from tests.distributed.trainer_cases import SPECS, TORCHS
from tvdnn import Trainer

pytestmark = pytest.mark.gpu
SCRIPT = "from tests.distributed.gpu_cases import {0}; {0}()"
WORLD = 2
ONE_GPU = "NCCL takes a GPU for each process"
CLOSE = {"rtol": 1e-3, "atol": 1e-5}


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Any]:
    """A group of this process alone, by NCCL."""
    store = f"file://{tmp_path}/store"
    distributed.init_process_group("nccl", init_method=store, rank=0, world_size=1)
    yield distributed.group.WORLD
    distributed.destroy_process_group()


@pytest.mark.parametrize("policy", ["keep", "vdnn-all", "auto"])
@pytest.mark.parametrize("delay_seed", [None, 1])
@pytest.mark.parametrize("shard", [None, "optimizer"])
def test_sums_in_a_graph_change_no_bit(
    group: Any, policy: str, delay_seed: int | None, shard: str | None
) -> None:
    found = []
    for how in ({"process_group": "none"}, {"process_group": group, "shard": shard}):
        net = Net(normalizes=True).cuda()
        options: dict[str, Any] = {"policy": policy, "dtype": "fp32", "chunk_size": 3000}
        options |= {"delay_seed": delay_seed, **how}
        x = torch.empty(16, *SHAPE, device="cuda")
        trainer = Trainer(net, x, optimizer=SPECS["SGD"], bucket_size=3000, **options)
        losses = [trainer.step(x.cuda(), y.cuda()).item() for x, y in batches(6, 16)]
        (first,) = batches(1, 16)
        assert trainer.timeline(*(each.cuda() for each in first)).step_s > 0.0  # a step more
        found.append((losses, [each.clone() for each in net.state_dict().values()]))
        trainer.close()
    (losses, alone), (others, together) = found
    assert losses == others
    assert all(torch.equal(*pair) for pair in zip(alone, together, strict=True))


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_two_processes_train_as_one_with_the_whole_batch(backend: str, tmp_path: Path) -> None:
    if backend == "nccl" and torch.cuda.device_count() < WORLD:
        pytest.skip(ONE_GPU)
    assert [process.wait() for process in started("main", backend, tmp_path)] == [0] * WORLD
    found = [torch.load(tmp_path / f"{backend}.{rank}.pt") for rank in range(WORLD)]
    exact, normalized = (
        trained(Net(normalizes=way).double(), batches(STEPS, 4 * WORLD), TORCHS["SGD"])
        for way in (False, True)
    )
    assert found[0]["losses"] == pytest.approx(exact["losses"].tolist(), rel=1e-4)
    for each in found:
        for way in each.keys() - {"losses"}:
            expected = normalized if way in ("normalized", "synchronized") else exact
            for name, value in expected["state"].items():
                torch.testing.assert_close(each[way][name].double(), value.double(), **CLOSE)
    assert ("shards" in found[0]) == (backend == "nccl")
    for way in found[0].keys() - {"losses"}:
        assert all(torch.equal(v, found[1][way][n]) for n, v in found[0][way].items())


@pytest.mark.skipif(torch.cuda.device_count() < WORLD, reason=ONE_GPU)
def test_a_process_ends_in_time_once_another_has_ended(tmp_path: Path) -> None:
    """By torch, which first waits for what others write of the sums (4 times these seconds)."""
    how: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    how["env"] = {**os.environ, "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1000"}
    first, last = started("lose_one", "nccl", tmp_path, **how)
    told = first.communicate()[0].decode()
    assert last.wait() == 0, last.communicate()[0].decode()
    assert first.returncode != 0
    assert "AssertionError" not in told
    assert "Timeout(ms)=" in told or "remote process" in told, told


def started(script: str, backend: str, folder: Path, **how: Any) -> list[subprocess.Popen[bytes]]:
    """The processes of all ranks."""
    commands = [
        [sys.executable, "-c", SCRIPT.format(script), backend, str(rank), str(WORLD), str(folder)]
        for rank in range(WORLD)
    ]
    return [subprocess.Popen(command, cwd=ROOT, **how) for command in commands]
