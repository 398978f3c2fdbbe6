"""Questions to torch about a network that is being drawn: does it train, does autograd take it?"""

from typing import Any

import torch

from bench.generated.writer import TORCH_FAILURES, Writer


def is_trained(w: Writer, output: str) -> bool:
    """Whether a parameter gets a gradient of this output. Yes where torch fails with gradients."""
    net, inputs = _made(w, [output])
    try:
        out = net(*(x.detach() for x in inputs))[0]
    except TORCH_FAILURES:
        return True
    return bool(out.requires_grad)


def _made(w: Writer, outputs: list[str]) -> tuple[torch.nn.Module, list[torch.Tensor]]:
    """The network as a module, and inputs for it."""
    namespace: dict[str, Any] = {}
    exec(w.program(outputs, "tuple").printed(), namespace)
    inputs = [torch.randn(each.shape, requires_grad=each.grad) for each in w.inputs]
    return namespace["make"](), inputs


def is_differentiable(w: Writer) -> bool:
    """Whether torch computes the network's gradients without an error."""
    net, inputs = _made(w, list(w.values))
    try:
        wanted = [out for out in net(*inputs) if out.requires_grad]
        if wanted:
            torch.autograd.backward([out.sum() for out in wanted])
    except TORCH_FAILURES:
        return False
    return True
