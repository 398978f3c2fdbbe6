"""Networks through the engine beside the same networks in float64 through torch."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tvdnn.engine import virtualize

RELATIVE = 2e-4  # of a tensor's RMS: float32 sums of some hundreds of terms, over two steps
STEPS = 2


def assert_trains_as_torch(
    net: nn.Module, *inputs: Tensor, policies: Sequence[str] = ("keep", "auto"), lr: float = 0.1
) -> None:
    """Compare two steps: outputs, all gradients, parameters and buffers after each.

    The policies must agree to the bit, the module must keep its parameters and buffers, and
    parameters that torch gives no gradient may get none.
    """
    steps = [_steps(copy.deepcopy(net), inputs, policy, lr) for policy in policies]
    for other in steps[1:]:
        for mine, theirs in zip(steps[0], other, strict=True):
            assert mine.keys() == theirs.keys()
            for name, tensor in mine.items():
                assert torch.equal(tensor, theirs[name]), name
    exact = _steps(copy.deepcopy(net).double(), [x.double() for x in inputs], None, lr)
    for mine, theirs in zip(steps[0], exact, strict=True):
        assert mine.keys() == theirs.keys()
        for name, tensor in mine.items():
            assert_close(tensor, theirs[name], name)


def assert_close(mine: Tensor, exact: Tensor, name: str) -> None:
    """Whether the RMS error is a small part of the exact tensor's RMS."""
    assert mine.shape == exact.shape, name
    error = (mine.double() - exact.double()).square().mean().sqrt()
    scale = exact.double().square().mean().sqrt()
    assert error <= RELATIVE * scale + 1e-7, f"{name}: RMS error {error:.2e} of {scale:.2e}"


def _steps(
    net: nn.Module, inputs: Sequence[Tensor], policy: str | None, lr: float
) -> list[dict[str, Tensor]]:
    """The compared tensors of each step. Without a policy torch runs the steps."""
    names = [name for name, _ in (*net.named_parameters(), *net.named_buffers())]
    tensors = [*net.parameters(), *net.buffers()]
    model = (
        net if policy is None else virtualize(net, tuple(x.detach() for x in inputs), policy=policy)
    )
    now = (*net.named_parameters(), *net.named_buffers())
    assert [name for name, _ in now] == names
    assert all(mine is theirs for (_, mine), theirs in zip(now, tensors, strict=True))
    return [_step(net, model, inputs, lr) for _ in range(STEPS)]


def _step(
    net: nn.Module, model: nn.Module, inputs: Sequence[Tensor], lr: float
) -> dict[str, Tensor]:
    given = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
    read = [x.clone() if x.requires_grad else x for x in given]  # torch writes over no leaf
    outputs = model(*read)
    outputs = outputs if isinstance(outputs, (tuple, list)) else [outputs]
    found = {f"output {n}": y.detach().clone() for n, y in enumerate(outputs)}
    found |= {
        f"output {n} has a gradient": torch.tensor(y.requires_grad) for n, y in enumerate(outputs)
    }
    total = sum((y * _weights(y)).sum() for y in outputs if y.requires_grad)
    net.zero_grad(set_to_none=True)
    if isinstance(total, Tensor):
        total.backward()
    leaves = [*net.named_parameters(), *((f"input {n}", x) for n, x in enumerate(given))]
    grads = {f"grad {name}": leaf.grad.clone() for name, leaf in leaves if leaf.grad is not None}
    with torch.no_grad():
        for _, param in net.named_parameters():
            if param.grad is not None:
                param -= lr * param.grad
    state = {name: each.detach().clone() for name, each in net.state_dict().items()}
    return found | grads | state


def _weights(y: Tensor) -> Tensor:
    """Fixed weights of an output's elements. Its gradient is not all ones."""
    generator = torch.Generator().manual_seed(5)
    return torch.randn(y.shape, generator=generator).to(y.dtype) / y.numel()
