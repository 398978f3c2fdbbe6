"""Every network of the table: the bits of keep under every policy, and gradients as torch's."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.networks.case import NetworkCase, Options, Run
from tests.networks.table import NETWORKS
from tvdnn.engine import Trainer, virtualize
from tvdnn.kernels.conv import depthwise
from tvdnn.optim import SGD

pytestmark = pytest.mark.usefixtures("few_trials")

RUNS = [(name, run) for name, case in NETWORKS.items() for run in case.runs]
RTOL = 1e-4  # of float32 beside float64


def trained(
    case: NetworkCase, run: Run, options: Options, device: torch.device
) -> tuple[list[Tensor], int]:
    """Losses, and parameters and buffers after the steps; bytes of the slab that maps moved to."""
    net = case.network().to(device)
    batches = [
        (x.to(device), y.to(device)) for x, y in case.batches(run.steps, 1, samples=run.samples)
    ]
    settings = {"dtype": run.dtype, "kernels": run.kernels, "chunk_size": case.chunk_size}
    x, _ = batches[0]
    trainer = Trainer(net, x, optimizer=SGD(lr=0.1), order_seed=5, **settings, **options)
    losses = [trainer.step(x, y).clone() for x, y in batches]
    nbytes = trainer.schedule.slab_nbytes
    trainer.close()
    return [*losses, *net.state_dict().values()], nbytes


@pytest.mark.parametrize(
    ("name", "run"), RUNS, ids=[f"{name}, {run.dtype}, {run.kernels}" for name, run in RUNS]
)
def test_every_policy_trains_to_the_bits_of_keep(
    name: str, run: Run, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(depthwise, "PROGRAMS", 4)  # the interpreter takes one by one
    case = NETWORKS[name]
    kept, nbytes = trained(case, run, {"policy": "keep"}, device)
    assert nbytes == 0
    assert all(value.isfinite().all() for value in kept)
    for options in case.policies:
        moved, nbytes = trained(case, run, options, device)
        assert nbytes > 0 or not options["policy"].startswith("vdnn-all")
        assert all(torch.equal(one, other) for one, other in zip(kept, moved, strict=True))


@pytest.mark.parametrize("name", [name for name, case in NETWORKS.items() if case.gradients])
def test_gradients_are_torchs(name: str) -> None:
    """Of the input and all parameters, with maps that move, beside autograd in float64."""
    case = NETWORKS[name]
    net, ((x, y),) = case.network(), case.batches(1, 2)
    twin = copy.deepcopy(net).double()
    virtual = virtualize(
        net, x, dtype="fp32", policy="vdnn-all:m", chunk_size=case.chunk_size, order_seed=1
    )
    mine, theirs = x.clone().requires_grad_(), x.double().requires_grad_()
    losses = [
        functional.cross_entropy(run(given), y) for run, given in ((virtual, mine), (twin, theirs))
    ]
    for loss in losses:
        loss.backward()
    torch.testing.assert_close(losses[0].double(), losses[1], rtol=RTOL, atol=case.atol)
    assert_gradients_are_close([mine, *net.parameters()], [theirs, *twin.parameters()], case.atol)


def assert_gradients_are_close(
    mine: list[Tensor | nn.Parameter], theirs: list[Tensor | nn.Parameter], atol: float
) -> None:
    for one, other in zip(mine, theirs, strict=True):
        assert (one.grad is None) == (other.grad is None)
        if one.grad is not None and other.grad is not None:
            torch.testing.assert_close(one.grad.double(), other.grad, rtol=RTOL, atol=atol)
