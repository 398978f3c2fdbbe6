"""Every network of the table: the bits of keep under every policy, and gradients as torch's."""

import pytest
import torch
from torch import Tensor

from tests.networks.case import NetworkCase, Options, Run
from tests.networks.table import NETWORKS
from tests.support.twins import beside_float64
from tvdnn.engine import Trainer
from tvdnn.kernels.conv import depthwise_grad_weight
from tvdnn.optim import SGD

pytestmark = [
    pytest.mark.usefixtures("few_trials"),
    pytest.mark.filterwarnings("ignore:.*packed codes of a step:RuntimeWarning"),
]

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
    monkeypatch.setattr(depthwise_grad_weight, "PROGRAMS", 4)  # the interpreter takes one by one
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
    """The loss and all gradients, with maps that move, beside autograd in float64."""
    case = NETWORKS[name]
    (batch,) = case.batches(1, 2)
    options = {"policy": "vdnn-all:m", "chunk_size": case.chunk_size, "order_seed": 1}
    for mine, theirs in beside_float64(case.network(), batch, **options):
        assert (mine is None) == (theirs is None)
        if mine is not None and theirs is not None:
            torch.testing.assert_close(mine.double(), theirs, rtol=RTOL, atol=case.atol)
