"""The engine on a GPU: bits as keep's, memory as planned, random delays, host inputs, autograd."""

from typing import Any, TypeAlias

import pytest
import torch
from torch.nn import functional

import tvdnn
from tests.support.accuracy import torchs_precision
from tvdnn.errors import BudgetError, InputError
from tvdnn.planner.ir.schedule import Schedule
from tvdnn.planner.make import Problem
from tvdnn.runtime.host_slab import Slab

pytestmark = pytest.mark.gpu

Batch: TypeAlias = tuple[torch.Tensor, torch.Tensor]
Outcome: TypeAlias = tuple[list[float], list[torch.Tensor], Schedule, int]

CHUNK = 256 * 1024
BATCH = 24
SGD = tvdnn.optim.SGD(lr=0.01, momentum=0.9, weight_decay=1e-4)


def make_net() -> torch.nn.Module:
    torch.manual_seed(0)
    return tvdnn.models.vgg11(width=0.25, num_classes=10).cuda()


@pytest.fixture
def batch() -> Batch:
    generator = torch.Generator("cuda").manual_seed(1)
    x = torch.randn(BATCH, 3, 64, 64, device="cuda", generator=generator)
    return x, torch.randint(0, 10, (BATCH,), device="cuda", generator=generator)


def train(batch: Batch, steps: int = 4, **options: Any) -> Outcome:
    """Losses and weights after some steps, and the closed trainer's schedule."""
    net = make_net()
    trainer = tvdnn.Trainer(net, batch[0], **({"optimizer": SGD, "chunk_size": CHUNK} | options))
    losses = [trainer.step(*batch).item() for _ in range(steps)]
    schedule = trainer.schedule
    peak = trainer.peak_nbytes()
    trainer.close()
    return losses, [param.detach().clone() for param in net.parameters()], schedule, peak


def assert_equal(got: Outcome, want: Outcome) -> None:
    assert got[0] == want[0]
    assert all(torch.equal(a, b) for a, b in zip(got[1], want[1], strict=True))


@pytest.mark.parametrize("dtype", ["fp32", "tf32", "bf16"])
def test_policies_equal_keep_bit_for_bit(batch: Batch, dtype: str) -> None:
    want = train(batch, policy="keep", dtype=dtype)
    for policy in ("vdnn-all:m", "vdnn-all:p", "vdnn-conv", "vdnn-all:p:sync"):
        assert_equal(train(batch, policy=policy, dtype=dtype), want)


def test_policies_equal_keep_bit_for_bit_under_adamw(batch: Batch) -> None:
    options = {"dtype": "bf16", "optimizer": tvdnn.optim.AdamW(lr=1e-3), "steps": 12}
    want = train(batch, policy="keep", **options)
    assert_equal(train(batch, policy="vdnn-all:m", **options), want)
    assert want[0][-1] < want[0][0]


@pytest.mark.parametrize("seed", range(4))
def test_random_delays_change_no_bit(batch: Batch, seed: int) -> None:
    want = train(batch, policy="keep", dtype="bf16")
    got = train(batch, policy="vdnn-all", dtype="bf16", delay_seed=seed)
    assert_equal(got, want)


def test_smallest_budget_holds_and_changes_no_bit(batch: Batch) -> None:
    want = train(batch, policy="keep", dtype="bf16")
    options = {"optimizer": SGD, "chunk_size": CHUNK, "dtype": "bf16"}
    trainer = tvdnn.Trainer(make_net(), batch[0], policy="vdnn-all:m", **options)
    floor, _ = Problem(trainer.graph, trainer.costs).floor("vdnn-all:m")
    trainer.close()
    with pytest.raises(BudgetError):
        train(batch, policy="vdnn-all:m", dtype="bf16", budget=floor // 2)
    got = train(batch, policy="vdnn-all:m", dtype="bf16", budget=floor, delay_seed=0)
    assert_equal(got, want)
    assert got[2].peak_nbytes <= floor


def test_peak_is_the_planned_one(batch: Batch) -> None:
    net = tvdnn.models.vgg11(width=0.5, num_classes=10).cuda()
    cycle: list[object] = [torch.empty(64 * 2**20, dtype=torch.uint8, device="cuda")]
    cycle.append(cycle)
    del cycle  # garbage that is freed as the trainer is made
    trainer = tvdnn.Trainer(
        net, batch[0], optimizer=SGD, chunk_size=CHUNK, policy="vdnn-all", dtype="bf16"
    )
    trainer.step(*batch)
    assert (
        abs(trainer.peak_nbytes() - trainer.schedule.peak_nbytes)
        <= 0.01 * trainer.schedule.peak_nbytes + 2**20
    )


@pytest.mark.parametrize("place", ["pinned", "pageable"])
def test_host_inputs_train_to_the_same_bits(batch: Batch, place: str) -> None:
    want = train(batch, policy="vdnn-all", dtype="bf16")
    x, y = (value.cpu().pin_memory() if place == "pinned" else value.cpu() for value in batch)
    assert_equal(train((x, y), policy="vdnn-all", dtype="bf16"), want)


def test_accumulation_updates_once(batch: Batch) -> None:
    net, twin = make_net(), make_net()
    for module in (net, twin):
        for child in module.modules():
            if isinstance(child, torch.nn.Dropout):
                child.p = 0.0
    x, y = batch
    trainer = tvdnn.Trainer(net, x, optimizer=SGD, chunk_size=CHUNK, dtype="fp32")
    whole = tvdnn.Trainer(twin, x, optimizer=SGD, chunk_size=CHUNK, dtype="fp32")
    for _ in range(3):
        loss, want = trainer.step(x, y, accumulate=4), whole.step(x, y)
        torch.testing.assert_close(loss, want, rtol=1e-4, atol=1e-5)
    for a, b in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@torchs_precision("fp32")
def test_autograd_matches_torch(batch: Batch) -> None:
    x, y = batch
    net, twin = make_net().eval(), make_net().eval()
    virtual = tvdnn.virtualize(net, x, policy="vdnn-all", chunk_size=CHUNK, dtype="fp32")
    for size in (BATCH, 7, 16):
        mine, theirs = (x[:size].clone().requires_grad_() for _ in range(2))
        functional.cross_entropy(virtual(mine), y[:size]).backward()
        functional.cross_entropy(twin(theirs), y[:size]).backward()
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-3, atol=1e-6)
    for a, b in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-4)


def test_references_run_in_the_same_schedule(batch: Batch) -> None:
    torch_losses = train(batch, policy="vdnn-all", dtype="fp32", kernels="torch")[0]
    triton_losses = train(batch, policy="vdnn-all", dtype="fp32")[0]
    assert torch_losses == pytest.approx(triton_losses, rel=1e-3)


@pytest.mark.parametrize("policy", ["keep", "vdnn-all"])
@pytest.mark.parametrize("name", ["resnet18", "densenet121"])
def test_references_train_normalized_networks(name: str, policy: str) -> None:
    x = torch.randn(8, 3, 64, 64, device="cuda")
    y, losses = torch.arange(8, device="cuda"), {}
    for kernels in ("torch", "triton"):
        torch.manual_seed(0)
        net = tvdnn.models.by_name(name).cuda()
        options = {"policy": policy, "dtype": "fp32", "kernels": kernels, "optimizer": SGD}
        trainer = tvdnn.Trainer(net, x, **options)
        losses[kernels] = [trainer.step(x, y).item() for _ in range(3)]
        trainer.close()
    assert losses["torch"] == pytest.approx(losses["triton"], rel=1e-2)


@pytest.mark.parametrize("kernels", ["triton", "torch"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_wrong_labels_change_nothing(batch: Batch, kernels: str, accumulate: int) -> None:
    """The host is ahead by some steps; none of them changes anything."""
    torch.manual_seed(0)
    net = tvdnn.models.by_name("resnet18").cuda()
    x, y = batch
    wrong = y.clone()
    wrong[17] = 4000
    trainer = tvdnn.Trainer(net, x, optimizer=tvdnn.optim.AdamW(1e-3), kernels=kernels)
    trainer.step(x, y)
    before = {name: value.clone() for name, value in net.state_dict().items()}

    def go_on() -> None:
        for number in range(50):
            loss = trainer.step(x, y if number else wrong, accumulate=accumulate)
        loss.item()

    with pytest.raises(InputError, match="step 2: sample 17 has label 4000"):
        go_on()
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert trainer.step(x, y, accumulate=accumulate).item() > 0.0
    assert trainer.state_dict()["steps"] == 2
    trainer.close()


def test_slab_is_pinned_and_exact() -> None:
    slab = Slab(pinned=True)
    slab.reserve(5 * 2**20 + 3)
    assert slab.bytes.is_pinned()
    assert slab.nbytes == -(-(5 * 2**20 + 3) // 4096) * 4096
    slab.close()


def test_a_hundred_steps_grow_no_memory(batch: Batch) -> None:
    net = make_net()
    trainer = tvdnn.Trainer(
        net, batch[0], optimizer=SGD, chunk_size=CHUNK, policy="vdnn-all", dtype="bf16"
    )
    trainer.step(*batch)
    before = torch.cuda.memory_allocated()
    for _ in range(100):
        trainer.step(*batch)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before + 1024
