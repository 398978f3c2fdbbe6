"""A trainer's refusals, and the state that a failed step leaves as it was."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.trained_networks import BATCH, SHAPE, batches_of, make_net, trainer_of
from tvdnn.engine import Trainer
from tvdnn.errors import BudgetError, EngineError, HostMemoryError, InputError
from tvdnn.kernels.pointwise import activation
from tvdnn.optim import SGD

pytestmark = pytest.mark.usefixtures("units_of_one", "few_trials")


class Breaking:
    """A kernel that raises `error` once, when armed, at a given call."""

    def __init__(self, kernel: Callable[..., None], error: type[BaseException]) -> None:
        self.kernel, self.error = kernel, error
        self.calls_left = -1

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        self.calls_left -= 1
        if self.calls_left == 0:
            raise self.error("stop here")
        self.kernel(*args, **kwargs)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_step_that_fails_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException], accumulate: int
) -> None:
    """The last ReLU's gradient is behind the updates of the last layer: those are undone."""
    breaking = Breaking(activation.relu_grad_reference, error)
    monkeypatch.setattr(activation, "relu_grad_reference", breaking)
    net = make_net()
    trainer = trainer_of(net, policy="vdnn-all")
    (x, y), *_ = batches_of(1)
    trainer.step(x, y, accumulate=accumulate)
    before = copy.deepcopy(trainer.state_dict())
    breaking.calls_left = 8
    with pytest.raises(error, match="stop here"):
        trainer.step(x, y, accumulate=accumulate)
    after = trainer.state_dict()
    assert after["steps"] == before["steps"] == 1
    for name, value in before["model"].items():
        assert torch.equal(value, after["model"][name]), name
    for number, state in before["optimizer"]["state"].items():
        momentum = after["optimizer"]["state"][number]["momentum_buffer"]
        assert torch.equal(state["momentum_buffer"], momentum)
    with pytest.raises(EngineError, match=rf"failed step \({error.__name__}: stop here\)"):
        trainer.step(x, y, accumulate=accumulate)


def test_a_budget_below_the_floor_names_the_floor() -> None:
    with pytest.raises(BudgetError, match="below the floor") as raised:
        trainer_of(make_net(), budget="16KiB")
    floor = raised.value.floor_nbytes
    assert trainer_of(make_net(), budget=floor).schedule.peak_nbytes <= floor
    assert f"{floor:,} bytes" in str(raised.value)


def test_a_host_budget_bounds_what_moves() -> None:
    moving = trainer_of(make_net(), policy="vdnn-all")
    slab = moving.schedule.slab_nbytes
    assert slab > 0
    fits = trainer_of(make_net(), policy="vdnn-all", host_budget=slab)
    assert fits.schedule.slab_nbytes == slab
    with pytest.raises(HostMemoryError, match=r"above the host budget .*raise host_budget"):
        trainer_of(make_net(), policy="vdnn-all", host_budget=slab // 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "vdnn"}, "policy 'vdnn' is not known; choose one of keep, vdnn-all"),
        ({"dtype": "fp16"}, "dtype 'fp16' is not known; choose one of fp32, tf32, bf16"),
        ({"kernels": "cuda"}, "kernels 'cuda' are not known; choose triton or torch"),
        ({"budget": "lots"}, "'lots' is not a number of bytes"),
        ({"budget": 0}, "0 is not a positive number of bytes"),
        ({"chunk_size": "-4KiB"}, "'-4KiB' is not a number of bytes"),
        ({"sections": 0}, "sections is 0; it must be at least 1"),
    ],
)
def test_settings_that_make_no_sense_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        trainer_of(make_net(), **options)


def test_a_trainer_keeps_float32_weights() -> None:
    with pytest.raises(InputError, match=r"parameter \S+ is bfloat16, not float32; call .float"):
        trainer_of(make_net().bfloat16())


@pytest.mark.parametrize(
    ("x", "y", "accumulate", "message"),
    [
        (torch.zeros(6, *SHAPE), torch.zeros(6), 1, r"y is torch.float32 \[6\]; it must be int64"),
        (torch.zeros(6, *SHAPE), torch.zeros(5, dtype=torch.int64), 1, r"of shape \[6\]"),
        (torch.zeros(6, 3, 9, 9), torch.zeros(6, dtype=torch.int64), 1, "only the batch may vary"),
        (torch.zeros(6, *SHAPE), torch.zeros(6, dtype=torch.int64), 4, "does not divide the batch"),
        (torch.zeros(6, *SHAPE), torch.zeros(6, dtype=torch.int64), 0, "accumulate=0"),
        (torch.zeros(0, *SHAPE), torch.zeros(0, dtype=torch.int64), 1, "no samples"),
    ],
)
def test_batches_that_do_not_fit_are_named(
    x: Tensor, y: Tensor, accumulate: int, message: str
) -> None:
    trainer = trainer_of(make_net())
    with pytest.raises(InputError, match=message):
        trainer.step(x, y, accumulate=accumulate)
    assert trainer.step(*batches_of(1)[0]).isfinite()


def test_networks_that_cannot_be_trained_are_named() -> None:
    x = torch.empty(BATCH, *SHAPE)
    with pytest.raises(InputError, match="nothing to train"):
        Trainer(make_net().requires_grad_(False), x)
    with pytest.raises(InputError, match=r"call .float\(\)"):
        Trainer(make_net().double(), x)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": -1.0}, "SGD lr is -1.0; it must be at least 0"),
        ({"momentum": -0.1}, "SGD momentum is -0.1"),
        ({"nesterov": True}, "nesterov needs a momentum"),
    ],
)
def test_optimizers_that_torch_refuses_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        SGD(**settings)


def test_a_closed_trainer_says_so() -> None:
    trainer = trainer_of(make_net())
    trainer.close()
    with pytest.raises(EngineError, match="closed"):
        trainer.step(*batches_of(1)[0])


def test_parameters_that_a_failed_step_may_have_updated_are_lost() -> None:
    trainer = trainer_of(make_net())
    x, y = batches_of(1)[0]
    trainer.step(x, y)
    trainer._steps.loses = True  # as with early_updates on a GPU, where nothing is restored
    run = trainer._core.run

    def fail(*_: Any) -> None:
        raise EngineError("no answer")

    trainer._core.run = fail
    with pytest.raises(EngineError, match="no answer; with early_updates"):
        trainer.step(x, y)
    trainer._core.run = run
    for use in (lambda: trainer.step(x, y), trainer.state_dict):
        with pytest.raises(EngineError, match="lost; make a new trainer"):
            use()
