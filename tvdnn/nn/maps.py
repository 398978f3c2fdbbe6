"""How torch's tensors become the contiguous maps of the kernels, and how results go back."""

from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.overrides import has_torch_function

from ..errors import InputError

DTYPES = (torch.float32, torch.bfloat16)
Launcher = TypeVar("Launcher")


def apply(function: type[torch.autograd.Function], *arguments: Any) -> Tensor:
    """The tensor that an autograd function yields."""
    y: Tensor = function.apply(*arguments)
    return y


def torchs_own(*tensors: Tensor) -> bool:
    """Whether a call is left to torch: on fx proxies, tensor subclasses and meta tensors."""
    return has_torch_function(tensors) or any(tensor.is_meta for tensor in tensors)


def choose(x: Tensor, kernel: Launcher, reference: Launcher) -> Launcher:
    """The Triton launcher where `x` is on a GPU, else its plain PyTorch reference."""
    return kernel if x.is_cuda else reference


def checked(x: Tensor) -> Tensor:
    """`x`, if the kernels take its type."""
    if x.dtype not in DTYPES:
        name = str(x.dtype).removeprefix("torch.")
        raise InputError(f"the input is {name}; tvdnn's layers take float32 and bfloat16")
    return x


def autocast(x: Tensor) -> Tensor:
    """`x`, checked, in the type that torch.autocast asks matrix products to be in."""
    kind = x.device.type
    return checked(x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x)


def nhwc(x: Tensor) -> Tensor:
    """A map [N, C, H, W] of any strides as a contiguous [N, H, W, C]; no copy if channels_last."""
    if x.dim() != 4:
        raise InputError(f"the input has shape {tuple(x.shape)}; maps are [N, C, H, W]")
    return x.permute(0, 2, 3, 1).contiguous()


def nchw(y: Tensor, *, like: Tensor) -> Tensor:
    """A map [N, H, W, C] as torch's [N, C, H, W], in the memory format of `like`."""
    y = y.permute(0, 3, 1, 2)
    made = y.contiguous() if like.is_contiguous() else y
    return owned(made) if made._is_view() else made  # as that of one channel is, or of one pixel


def owned(view: Tensor) -> Tensor:
    """The same elements as a tensor that is no view.

    For what an autograd function makes and returns: torch lets nobody write in place into a view.
    """
    whole = view.new_empty(0)
    return whole.set_(view.untyped_storage(), view.storage_offset(), view.shape, view.stride())


def dense(x: Tensor) -> Tensor:
    """`x` without gaps between its elements; no copy if it is contiguous or channels_last."""
    if x.is_contiguous() or x.is_contiguous(memory_format=torch.channels_last):
        return x
    return x.contiguous()


def dense_like(dy: Tensor, y: Tensor) -> Tensor:
    """`dy` with the strides of the dense tensor `y`."""
    return dy if dy.stride() == y.stride() else torch.empty_like(y, dtype=dy.dtype).copy_(dy)


def flat(x: Tensor) -> Tensor:
    """The elements of a dense tensor in the order of their addresses."""
    return x.as_strided((x.numel(),), (1,))


def shape_only(x: Tensor) -> Tensor:
    """A tensor of the shape and type of `x` on the meta device, to ask torch for result shapes."""
    return torch.empty(x.shape, dtype=x.dtype, device="meta")
