"""Answers of meta copies, as the tensors of the network would give them.

A meta copy has no values: a call that reads values is refused. A meta copy says that it lies on the
network's device. A tensor that a call makes on that device is on the meta device, too.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from .functionalize import version_of

READS: Final = frozenset(  # functions and methods that read values
    {
        *("item", "tolist", "numpy", "data_ptr", "equal", "allclose", "is_nonzero", "__array__"),
        *("__bool__", "__int__", "__float__", "__index__", "__complex__", "__contains__"),
    }
)
SET: Final = ("data", "grad")  # attributes; torch does not count their setting as a write
MOVES: Final = ("to", "cpu", "cuda")
DRAWS: Final = ("rand", "randn", "normal")  # functions whose results a network moves to its device


class LostWriteError(Exception):
    """A call wrote values of the network into a tensor that has values of its own."""


def torch_name_of(function: Any) -> str:
    """The name of a function or method; for a getter or a setter that of the attribute."""
    name = str(getattr(function, "__name__", function))
    if name in ("__get__", "__set__"):
        return str(getattr(function.__self__, "__name__", name))
    return name


def reads_values(function: Any, args: tuple[Any, ...]) -> bool:
    """Whether a call reads values of a meta copy, or of a tensor made of meta copies."""
    name = torch_name_of(function)
    if not any(_is_meta_copy(each) for each in args):
        return False
    return name in READS or (name == "__format__" and args[0].dim() == 0 and args[1] != "")


def sets_attribute(function: Any) -> bool:
    """Whether a call sets `.data` or `.grad` of a tensor."""
    is_setter = getattr(function, "__name__", None) == "__set__"
    return is_setter and torch_name_of(function) in SET


def answer(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    device: torch.device,
) -> Any:
    """The result of a call of torch, for which meta copies seem to lie on `device`.

    Raises LostWriteError where the call writes into a tensor that has values of its own.
    """
    name = torch_name_of(function)
    tensors = _tensors(args)
    if not any(map(_is_meta_copy, tensors)):
        draws = name in DRAWS and not tensors
        return function(*args, **_placed(kwargs, device, draws=draws))
    if name in _FACTS and args:
        return _FACTS[name](device)
    if name in MOVES:
        args, kwargs = _on_meta(name, args, kwargs)
        return function(*args, **kwargs) if name == "to" else args[0]
    copies: list[Tensor] = []
    result = function(*_together(args, copies), **kwargs)
    if any(version_of(each) for each in copies):
        raise LostWriteError
    return result


def _placed(kwargs: dict[str, Any], device: torch.device, *, draws: bool) -> dict[str, Any]:
    """The arguments, where they name the network's device with the meta device instead.

    Random numbers have no values while tracing, wherever they are drawn.
    """
    given = kwargs.get("device")
    is_there = given is not None and torch.device(given).type == device.type
    is_there |= draws and kwargs.get("generator") is None and kwargs.get("out") is None
    return kwargs | {"device": "meta"} if is_there else kwargs


def _tensors(args: tuple[Any, ...]) -> list[Tensor]:
    lists = [each if isinstance(each, (list, tuple)) else (each,) for each in args]
    return [each for found in lists for each in found if isinstance(each, Tensor)]


def _is_meta_copy(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device.type == "meta"


def _together(args: tuple[Any, ...], copies: list[Tensor]) -> tuple[Any, ...]:
    """The arguments with all tensors but numbers on the meta device.

    Tensors that are copied there are appended to `copies`.
    """
    return tuple(_moved(each, copies) for each in args)


def _moved(value: Any, copies: list[Tensor]) -> Any:
    """One argument on the meta device. A closure would keep the copies in a cycle."""
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(_moved(each, copies) for each in value)
    is_number = not isinstance(value, Tensor) or value.dim() == 0
    if is_number or _is_meta_copy(value):
        return value
    copies.append(value.to("meta"))
    return copies[-1]


def _on_meta(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a move to another device, with the meta device in its place."""

    def placed(value: Any) -> Any:
        if isinstance(value, torch.device) or (isinstance(value, str) and name == "to"):
            return torch.device("meta")
        return value.to("meta") if isinstance(value, Tensor) else value

    return tuple(map(placed, args)), {key: placed(each) for key, each in kwargs.items()}


_FACTS: Final[dict[str, Callable[[torch.device], Any]]] = {
    "device": lambda device: device,
    "is_cuda": lambda device: device.type == "cuda",
    "is_cpu": lambda device: device.type == "cpu",
    "is_meta": lambda device: device.type == "meta",
    "get_device": lambda device: (device.index or 0) if device.type == "cuda" else -1,
}
