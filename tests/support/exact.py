"""Whole training steps of small networks under several policies beside torch in float64."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tvdnn.engine import virtualize

CHUNK_SIZE = 600  # bytes: a sample a section
LEARNING_RATE = 0.01
STEPS = 2
RTOL, ATOL = 1e-4, 1e-5  # of float32 beside float64
POLICIES: tuple[Mapping[str, Any], ...] = ({"policy": "keep"}, {"policy": "vdnn-all:m"})
WITH_AUTO: tuple[Mapping[str, Any], ...] = (*POLICIES, {"policy": "auto", "budget": "min"})


class Functional(nn.Module):
    """Returns `way` of the module, which has the given layers and parameters, and of the inputs."""

    def __init__(self, way: Callable[..., Any], **parts: nn.Module | Tensor) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part if isinstance(part, nn.Module) else nn.Parameter(part))
        self.way = way

    def forward(self, *inputs: Tensor) -> Any:
        return self.way(self, *inputs)


def assert_steps_are_exact(
    net: nn.Module,
    *inputs: Tensor,
    policies: Sequence[Mapping[str, Any]] = POLICIES,
    chunk_size: int = CHUNK_SIZE,
    input_grads: bool = True,
) -> None:
    """Two training steps give torch's outputs, gradients and buffers, and keep's bits."""
    exact = _steps(copy.deepcopy(net).double(), inputs, torch.float64, input_grads=input_grads)
    kept: dict[str, Tensor | None] | None = None
    for options in policies:
        twin = copy.deepcopy(net)
        made = _steps(twin, inputs, torch.float32, options, chunk_size, input_grads=input_grads)
        for name, wanted in exact.items():
            _assert_close(f"{options}: {name}", made[name], wanted)
        kept = made if kept is None else kept
        for name, value in made.items():
            first = kept[name]
            same = first is value if value is None or first is None else torch.equal(first, value)
            assert same, f"{options}: {name} has other bits than under {policies[0]}"


def _assert_close(name: str, made: Tensor | None, wanted: Tensor | None) -> None:
    """Gradients that torch does not make are not made."""
    assert (made is None) == (wanted is None), name
    if made is None or wanted is None:
        return

    def told(message: str) -> str:
        return f"{name}: {message}"

    torch.testing.assert_close(made.double(), wanted.double(), rtol=RTOL, atol=ATOL, msg=told)


def _steps(
    net: nn.Module,
    inputs: Sequence[Tensor],
    dtype: torch.dtype,
    options: Mapping[str, Any] | None = None,
    chunk_size: int = CHUNK_SIZE,
    *,
    input_grads: bool,
) -> dict[str, Tensor | None]:
    """Outputs, gradients and buffers of each step, by name. `options` virtualize the net."""
    example = inputs[0] if len(inputs) == 1 else tuple(inputs)
    run = net
    if options is not None:
        run = virtualize(net, example, dtype="fp32", chunk_size=chunk_size, **options)
    found: dict[str, Tensor | None] = {}
    for step in range(STEPS):
        given = [(x + 0.1 * step).to(dtype).requires_grad_(input_grads) for x in inputs]
        outputs = _parts(run(*given))
        loss = sum((_weighted(each, step) for each in outputs), torch.zeros((), dtype=dtype))
        net.zero_grad()
        if loss.requires_grad:
            loss.backward()
        found |= {f"output {i} of step {step}": each.detach() for i, each in enumerate(outputs)}
        found |= {f"gradient of input {i} of step {step}": x.grad for i, x in enumerate(given)}
        for name, param in net.named_parameters():
            found[f"gradient of {name} of step {step}"] = _copied(param.grad)
        for name, buffer in net.named_buffers():
            found[f"{name} after step {step}"] = buffer.clone()
        _update(net)
    return found


def _parts(outputs: Any) -> list[Tensor]:
    if isinstance(outputs, Mapping):
        return list(outputs.values())
    return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]


def _weighted(output: Tensor, seed: int) -> Tensor:
    """A sum of the output's elements by random weights."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(output.shape, generator=generator, dtype=torch.float64)
    return (output * weights.to(output.dtype)).sum()


def _copied(grad: Tensor | None) -> Tensor | None:
    return None if grad is None else grad.clone()


def _update(net: nn.Module) -> None:
    with torch.no_grad():
        for param in net.parameters():
            if param.grad is not None:
                param -= LEARNING_RATE * param.grad
